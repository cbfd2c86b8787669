#include "cli/model/stages.h"

#include <algorithm>

#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/model/facts.h"
#include "stagecraft/partition/split_candidates.h"
#include "stagecraft/partition/stage_plan.h"

namespace stagecraft::cli {
namespace {

/// The fewest modules that contain the nodes `first` to `last` - 1.
std::vector<StagePart> parts_of(const ModuleTree& tree, std::size_t first, std::size_t last) {
  std::vector<int64_t> own(tree.size(), 0);  // operators here, without those of children
  for (std::size_t n = first; n < last; ++n) ++own[tree.module_at(n)];
  std::vector<int64_t> all = own;
  std::vector<std::size_t> order = tree.in_order();
  for (auto at = order.rbegin(); at != order.rend(); ++at) {
    for (const std::size_t child : tree.module(*at).children) all[*at] += all[child];
  }
  std::vector<StagePart> parts;
  std::vector<std::size_t> todo = {0};
  while (!todo.empty()) {
    const std::size_t next = todo.back();
    todo.pop_back();
    const ModuleFacts& module = tree.module(next);
    if (all[next] == 0) continue;
    if (next != 0 && all[next] == module.operators) {
      parts.push_back({module.name, all[next], true});
      continue;
    }
    if (own[next] > 0) {
      parts.push_back({module.name, own[next], all[next] == module.operators});
    }
    todo.insert(todo.end(), module.children.rbegin(), module.children.rend());
  }
  return parts;
}

std::vector<CrossingFacts> crossing(const Pipe& pipe, int32_t boundary) {
  std::vector<CrossingFacts> values;
  std::vector<OutputPort> seen;
  for (const Ports::Connection& connection : pipe.ports().connections()) {
    const int32_t from = connection.from.stage.value();
    const int32_t to = connection.to.stage.value();
    if (from >= boundary || to < boundary) continue;
    const auto found = std::ranges::find(seen, connection.from);
    if (found != seen.end()) {
      values[static_cast<std::size_t>(found - seen.begin())].to.push_back(to);
      continue;
    }
    seen.push_back(connection.from);
    const Graph& graph = pipe.stage_graph(connection.from.stage);
    const Argument& output =
        graph.parts().outputs[static_cast<std::size_t>(connection.from.output)];
    CrossingFacts& value = values.emplace_back();
    value.from = from;
    value.to = {to};
    if (const ValueId* id = output.value()) {
      value.name = graph.value(*id).name;
      value.type = type_text(graph, *id);
      value.bytes = example_bytes(graph, *id);
    } else {
      const SizeExpr* size = output.size();
      value.name = size != nullptr ? to_text(*size, graph.size_names()) : "number";
      value.type = "int";
      value.bytes = sizeof(int64_t);
    }
  }
  return values;
}

}  // namespace

SplitFacts split_facts(const Graph& graph, const Split& split, const ModuleTree& tree,
                       const std::vector<Boundary>& boundaries) {
  const SplitPositions positions = find_split_positions(graph, split);
  const Pipe pipe = Pipe::of_plan(graph, plan_stages(graph, positions, {}));
  const std::vector<StageSummary> summary = pipe.summary();
  SplitFacts facts;
  facts.ties = pipe.ties();
  std::vector<std::string> names;
  for (std::size_t s = 0; s < summary.size(); ++s) {
    StageFacts& stage = facts.stages.emplace_back();
    stage.summary = summary[s];
    stage.first = s == 0 ? 0 : positions[s - 1];
    const std::size_t last = s < positions.size() ? positions[s] : graph.parts().nodes.size();
    if (stage.first < graph.parts().nodes.size()) {
      stage.node = graph.parts().nodes[stage.first].name;
    }
    stage.parts = parts_of(tree, stage.first, last);
    if (s == 0) continue;
    stage.receives = crossing(pipe, static_cast<int32_t>(s));
    const Boundary& boundary = boundaries[stage.first - 1];
    if (boundary.names.empty()) continue;
    stage.begins = boundary.names.front();
    names.push_back(stage.begins);
  }
  if (!positions.empty() && names.size() == positions.size()) {
    facts.split = names.front();
    for (std::size_t i = 1; i < names.size(); ++i) *facts.split += "," + names[i];
  }
  return facts;
}

}  // namespace stagecraft::cli
