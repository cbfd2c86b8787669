#include "cli/model/costs.h"

#include <numeric>

#include "stagecraft/partition/flops.h"

namespace stagecraft::cli {

NodeCosts::NodeCosts(const Graph& graph) {
  const GraphParts& parts = graph.parts();
  std::vector<int64_t> unread(parts.values.size(), 0);  // elements, by value
  for (const GraphState& state : parts.states) {
    if (state.kind != GraphState::Kind::kParameter) continue;
    unread[state.value.position()] = state.tensor.numel();
    total_parameters += state.tensor.numel();
  }
  for (const GraphNode& node : parts.nodes) {
    flops.push_back(example_flops(graph, node));
    int64_t& first_read = parameters.emplace_back(0);
    for (const Argument& argument : node.arguments) {
      for_each_value(argument, [&](ValueId value) {
        int64_t& elements = unread[value.position()];
        first_read += elements;
        elements = 0;
      });
    }
  }
  total_flops = std::accumulate(flops.begin(), flops.end(), int64_t{0});
}

}  // namespace stagecraft::cli
