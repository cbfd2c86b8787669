#include "stagecraft/graph/passes/move.h"

#include <cstddef>
#include <utility>

#include <c10/core/GradMode.h>

#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft {

namespace {

bool is_on(const at::Tensor& tensor, c10::Device device) {
  return tensor.device() == device ||
         (!device.has_index() && tensor.device().type() == device.type());
}

bool has_tensors(const GraphNode& node) {
  bool result = false;
  for (const Argument& argument : node.arguments) {
    for_each_value(argument, [&](ValueId) { result = true; });
  }
  return result;
}

// Where the device is not said, an operator goes by its tensors; one without any, by the default.
void move_node(GraphNode& node, c10::Device device) {
  const c10::FunctionSchema* schema = find_schema(node.op);
  const bool is_factory = !has_tensors(node);
  for (std::size_t i = 0; i < node.arguments.size(); ++i) {
    const c10::IValue* fixed = node.arguments[i].fixed_value();
    if (fixed == nullptr) continue;
    const bool is_default =
        is_factory && fixed->isNone() && schema->arguments()[i].name() == "device";
    if (fixed->isDevice() || is_default) node.arguments[i] = Argument::fixed(device);
  }
  if (node.autocast) node.autocast->device_type = device.type();
  for (Graph& branch : node.branches) branch = move_to(branch, device);
}

}  // namespace

Graph move_to(const Graph& graph, c10::Device device, MovedTensors& moved) {
  const c10::NoGradGuard no_grad;
  GraphParts parts = graph.parts();
  bool is_moved = false;
  for (GraphState& state : parts.states) {
    if (is_on(state.tensor, device)) continue;
    check_states_apart(parts);
    is_moved = true;
    const auto [found, is_new] = moved.try_emplace(state.tensor.unsafeGetTensorImpl());
    if (is_new) {
      found->second = state.tensor.detach().to(device).requires_grad_(state.tensor.requires_grad());
    }
    state.tensor = found->second;
  }
  for (GraphValue& value : parts.values) {
    is_moved = is_moved || value.device.type() != device.type() ||
               (device.has_index() && value.device != device);
  }
  if (!is_moved) return graph;
  for (GraphValue& value : parts.values) value.device = device;
  for (GraphNode& node : parts.nodes) move_node(node, device);
  return Graph(std::move(parts));
}

Graph move_to(const Graph& graph, c10::Device device) {
  MovedTensors moved;
  return move_to(graph, device, moved);
}

}  // namespace stagecraft
