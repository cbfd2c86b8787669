#include "stagecraft/graph/passes/move.h"

#include <algorithm>
#include <cstddef>

#include <c10/core/GradMode.h>

#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/passes/run_pass.h"

namespace stagecraft {

namespace {

bool is_on(c10::Device given, c10::Device device) {
  return given == device || (!device.has_index() && given.type() == device.type());
}

bool has_tensors(const GraphNode& node) {
  bool result = false;
  for (const Argument& argument : node.arguments) {
    for_each_value(argument, [&](ValueId) { result = true; });
  }
  return result;
}

// An operator without a device argument uses the device of its tensors. An operator without tensors
// uses the default device, so the device must be named.
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
  auto is_there = [&](const GraphState& state) { return is_on(state.tensor.device(), device); };
  const bool has_states_there = std::ranges::all_of(graph.parts().states, is_there);
  if (has_states_there && std::ranges::all_of(graph.parts().values, [&](const GraphValue& value) {
        return is_on(value.device, device);
      })) {
    return graph;
  }
  // Copies of states that share memory would not share it.
  if (!has_states_there) check_states_apart(graph.parts());
  const c10::NoGradGuard no_grad;
  return run_pass(graph.parts(), [&](GraphParts parts) {
    for (GraphState& state : parts.states) {
      if (is_there(state)) continue;
      // By address: a tensor that several stages hold (a tied weight) stays one tensor.
      at::Tensor& copy = moved[state.tensor.unsafeGetTensorImpl()];
      if (!copy.defined()) {
        copy = state.tensor.detach().to(device).requires_grad_(state.tensor.requires_grad());
      }
      state.tensor = copy;
    }
    for (GraphValue& value : parts.values) value.device = device;
    for (GraphNode& node : parts.nodes) move_node(node, device);
    return parts;
  });
}

Graph move_to(const Graph& graph, c10::Device device) {
  MovedTensors moved;
  return move_to(graph, device, moved);
}

}  // namespace stagecraft
