#include "stagecraft/partition/boundaries.h"

#include <algorithm>

#include "stagecraft/base/error.h"
#include "stagecraft/partition/split_locator.h"

namespace stagecraft {

namespace {

std::size_t depth_of(const std::string& module) {
  return 1 + static_cast<std::size_t>(std::ranges::count(module, '.'));
}

/// Beginnings come before ends, and outer modules before inner modules.
void add_names(const SplitLocator& locator, std::vector<Boundary>& boundaries) {
  std::vector<std::string> modules = locator.modules().names();
  std::ranges::stable_sort(modules, {}, depth_of);
  for (const SplitPoint point : {SplitPoint::kBeginning, SplitPoint::kEnd}) {
    for (const std::string& name : modules) {
      try {
        const std::size_t position = locator.position(name, point);
        if (position == 0 || position > boundaries.size()) continue;
        boundaries[position - 1].names.push_back(point == SplitPoint::kEnd ? name + kModuleEnd
                                                                           : name);
      } catch (const ArgumentError&) {
        // No name is added: the model begins or ends with the module, or cannot be split there.
      }
    }
  }
}

}  // namespace

bool Boundary::begins_module(std::size_t depth) const {
  return !names.empty() && !names.front().ends_with(kModuleEnd) && depth_of(names.front()) <= depth;
}

std::vector<Boundary> find_boundaries(const Graph& graph, const NodeCosts& costs) {
  const SplitLocator locator(graph);
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  std::vector<Boundary> boundaries;
  int64_t flops = 0;
  int64_t parameters = 0;
  for (std::size_t p = 1; p < nodes.size(); ++p) {
    flops += costs.flops[p - 1];
    parameters += costs.parameters[p - 1];
    boundaries.push_back({.position = p,
                          .node = nodes[p].name,
                          .module = nodes[p].scope,
                          .bytes = locator.candidates().bytes(p),
                          .flops_before = flops,
                          .parameters_before = parameters,
                          .why_not = locator.candidates().why_not(p)});
  }
  add_names(locator, boundaries);
  return boundaries;
}

}  // namespace stagecraft
