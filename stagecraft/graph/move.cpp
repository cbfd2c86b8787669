#include "stagecraft/graph/move.h"

#include <utility>

#include <c10/core/GradMode.h>

namespace stagecraft {

Graph move_to(const Graph& graph, c10::Device device) {
  const c10::NoGradGuard no_grad;
  GraphParts parts = graph.parts();
  for (GraphState& state : parts.states) {
    if (state.tensor.device() == device) continue;
    state.tensor = state.tensor.detach().to(device).requires_grad_(state.tensor.requires_grad());
  }
  for (GraphValue& value : parts.values) value.device = device;
  for (GraphNode& node : parts.nodes) {
    for (Argument& argument : node.arguments) {
      const c10::IValue* fixed = argument.fixed_value();
      if (fixed != nullptr && fixed->isDevice()) argument = Argument::fixed(device);
    }
    if (node.autocast) node.autocast->device_type = device.type();
  }
  return Graph(std::move(parts));
}

}  // namespace stagecraft
