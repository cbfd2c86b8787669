#include "cli/model/borders.h"

#include <algorithm>

#include "stagecraft/base/error.h"

namespace stagecraft::cli {
namespace {

/// Beginnings come before ends, then outer modules before inner ones.
void add_names(const ModuleTree& tree, const SplitPlaces& places,
               std::vector<BorderFacts>& borders) {
  std::vector<std::size_t> modules = tree.in_order();
  std::ranges::stable_sort(modules, {}, [&](std::size_t m) { return tree.module(m).depth; });
  for (const SplitPoint point : {SplitPoint::kBeginning, SplitPoint::kEnd}) {
    for (const std::size_t number : modules) {
      const std::string& name = tree.module(number).name;
      if (name.empty() || !places.modules().find(name)) continue;
      try {
        const std::size_t place = places.place(name, point);
        if (place == 0 || place > borders.size()) continue;
        borders[place - 1].names.push_back(point == SplitPoint::kEnd ? name + kEnd : name);
      } catch (const ArgumentError&) {
        // The model begins or ends with the module, or it cannot be cut there.
      }
    }
  }
}

}  // namespace

bool BorderFacts::begins_module(std::size_t depth) const {
  if (names.empty() || names.front().ends_with(kEnd)) return false;
  return static_cast<std::size_t>(std::ranges::count(names.front(), '.')) < depth;
}

std::vector<BorderFacts> borders_of(const Graph& graph, const NodeCosts& costs,
                                    const ModuleTree& tree, const SplitPlaces& places) {
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  std::vector<BorderFacts> borders;
  int64_t flops = 0;
  int64_t parameters = 0;
  for (std::size_t p = 1; p < nodes.size(); ++p) {
    flops += costs.flops[p - 1];
    parameters += costs.parameters[p - 1];
    borders.push_back({.place = p,
                       .node = nodes[p].name,
                       .module = nodes[p].scope,
                       .bytes = places.cuts().bytes(p),
                       .flops_before = flops,
                       .parameters_before = parameters,
                       .why_not = places.cuts().why_not(p)});
  }
  add_names(tree, places, borders);
  return borders;
}

}  // namespace stagecraft::cli
