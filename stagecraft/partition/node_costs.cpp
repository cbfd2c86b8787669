#include "stagecraft/partition/node_costs.h"

#include <numeric>

#include "stagecraft/partition/flops.h"

namespace stagecraft {

NodeCosts::NodeCosts(const Graph& graph) {
  const GraphParts& parts = graph.parts();
  IndexedVector<ValueId, const at::Tensor*> unread(parts.values.size());  // parameters
  for (const GraphState& state : parts.states) {
    if (state.kind != GraphState::Kind::kParameter) continue;
    unread[state.value] = &state.tensor;
    total_parameters += state.tensor.numel();
  }
  for (const GraphNode& node : parts.nodes) {
    flops.push_back(example_flops(graph, node));
    int64_t& elements = parameters.emplace_back(0);
    int64_t& bytes = parameter_bytes.emplace_back(0);
    for (const Argument& argument : node.arguments) {
      for_each_value(argument, [&](ValueId value) {
        const at::Tensor*& parameter = unread[value];
        if (parameter == nullptr) return;
        elements += parameter->numel();
        bytes += static_cast<int64_t>(parameter->nbytes());
        parameter = nullptr;
      });
    }
  }
  total_flops = std::accumulate(flops.begin(), flops.end(), int64_t{0});
}

}  // namespace stagecraft
