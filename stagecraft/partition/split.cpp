#include "stagecraft/partition/split.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/node_costs.h"
#include "stagecraft/partition/split_locator.h"

namespace stagecraft {

namespace {

bool is_marker(const GraphNode& node) {
  return node.op.name == kSplitOperator;
}

/// A split point, and its name in messages.
struct Wish {
  std::size_t position = 0;
  std::string what;
};

/// Sorts the split points, and checks that every stage has an operator.
SplitPositions checked(const Graph& graph, const SplitCandidates& candidates,
                       std::vector<Wish> wishes) {
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  std::ranges::stable_sort(wishes, {}, &Wish::position);
  auto has_operator = [&](std::size_t first, std::size_t last) {
    return std::any_of(nodes.begin() + static_cast<std::ptrdiff_t>(first),
                       nodes.begin() + static_cast<std::ptrdiff_t>(last),
                       [](const GraphNode& node) { return !is_marker(node); });
  };
  SplitPositions positions;
  for (std::size_t i = 0; i < wishes.size(); ++i) {
    const std::size_t before = positions.empty() ? 0 : positions.back();
    const std::size_t position = wishes[i].position;
    require<ArgumentError>(position <= nodes.size() && has_operator(before, position),
                           "{}: the stage before it would be empty", wishes[i].what);
    require<ArgumentError>(position < nodes.size() && has_operator(position, nodes.size()),
                           "{}: the stage after it would be empty", wishes[i].what);
    require<ArgumentError>(candidates.is_legal(position), "{}: the graph cannot be split there: {}",
                           wishes[i].what, candidates.why_not(position));
    positions.push_back(position);
  }
  return positions;
}

SplitPositions at_markers(const Graph& graph, const SplitCandidates& candidates) {
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  std::vector<Wish> wishes;
  for (std::size_t n = 0; n < nodes.size(); ++n) {
    // Several markers in a row are one split point.
    if (!is_marker(nodes[n]) || (n > 0 && is_marker(nodes[n - 1]))) continue;
    // If the marker is between a change in place and the value that it changes, take the nearest
    // legal position.
    const bool is_inside = n > 0 && n + 1 < nodes.size();
    wishes.push_back({is_inside ? nearest_legal(candidates, n) : n,
                      fmt::format("pipe_split number {}", wishes.size() + 1)});
  }
  return checked(graph, candidates, std::move(wishes));
}

SplitPositions at_points(const Graph& graph, const Split& split) {
  const SplitLocator locator(graph);
  std::vector<Wish> wishes;
  for (const auto& [name, point] : split.points) {
    wishes.push_back({locator.position(name, point), describe(name, point)});
  }
  return checked(graph, locator.candidates(), std::move(wishes));
}

SplitPositions by_policy(const Graph& graph, const SplitCandidates& candidates,
                         const SplitPolicy& policy) {
  std::vector<Wish> wishes;
  for (const std::size_t position : policy(graph)) {
    wishes.push_back({position, fmt::format("the policy's split point before node {}", position)});
  }
  return checked(graph, candidates, std::move(wishes));
}

/// Legal positions with an operator between any two of them, and after the last.
SplitPositions positions_apart(const Graph& graph, const SplitCandidates& candidates) {
  const std::vector<GraphNode>& nodes = graph.parts().nodes;
  SplitPositions result;
  bool has_operator = false;
  for (std::size_t p = 0; p < nodes.size(); ++p) {
    if (p > 0 && has_operator && candidates.is_legal(p)) {
      result.push_back(p);
      has_operator = false;
    }
    has_operator = has_operator || !is_marker(nodes[p]);
  }
  if (!has_operator && !result.empty()) result.pop_back();
  return result;
}

/// Splits where the sum of weights reaches each share of the total.
SplitPositions equal_shares(const Graph& graph, int32_t stages, std::vector<double> weights) {
  const SplitCandidates candidates(graph);
  const SplitPositions legal = positions_apart(graph, candidates);
  const auto count = static_cast<std::size_t>(stages);
  require<ArgumentError>(legal.size() + 1 >= count,
                         "the model cannot be split into {} stages: it can have {} at most", stages,
                         legal.size() + 1);
  if (std::accumulate(weights.begin(), weights.end(), 0.0) <= 0) {
    std::ranges::fill(weights, 1.0);  // all weights are 0: count operators
  }
  std::vector<double> before(weights.size() + 1, 0);
  std::partial_sum(weights.begin(), weights.end(), before.begin() + 1);
  const double share = before.back() / stages;
  SplitPositions positions;
  std::size_t next = 0;  // the first position of `legal` that is not used
  for (std::size_t s = 1; s < count; ++s) {
    const double goal = share * static_cast<double>(s);
    auto miss = [&](std::size_t i) { return std::abs(before[legal[i]] - goal); };
    // Leave enough positions for the later stages.
    const std::size_t end = legal.size() - (count - 1 - s);
    double least_miss = miss(next);
    for (std::size_t i = next; i < end; ++i) least_miss = std::min(least_miss, miss(i));
    // Take the position with the fewest bytes among those within a tenth of a stage. If there is
    // none, take the nearest position.
    auto is_near = [&](std::size_t i) { return miss(i) <= std::max(share / 10, least_miss); };
    std::size_t best = next;
    for (std::size_t i = next + 1; i < end; ++i) {
      const bool is_better =
          is_near(i) != is_near(best)
              ? is_near(i)
              : (is_near(i) ? std::pair(candidates.bytes(legal[i]), miss(i)) <
                                  std::pair(candidates.bytes(legal[best]), miss(best))
                            : miss(i) < miss(best));
      if (is_better) best = i;
    }
    positions.push_back(legal[best]);
    next = best + 1;
  }
  return positions;
}

void check_stages(int32_t stages) {
  require<ArgumentError>(stages >= 1, "expected at least 1 stage, got {}", stages);
}

}  // namespace

SplitPositions find_split_positions(const Graph& graph, const Split& split) {
  require<ArgumentError>(split.points.empty() || !split.policy,
                         "expected split points or a policy, got both");
  if (!split.points.empty()) return at_points(graph, split);
  const SplitCandidates candidates(graph);
  if (split.policy) return by_policy(graph, candidates, split.policy);
  return at_markers(graph, candidates);
}

SplitPolicy equal_parameters(int32_t stages) {
  check_stages(stages);
  return [stages](const Graph& graph) {
    const NodeCosts costs(graph);
    return equal_shares(graph, stages,
                        {costs.parameter_bytes.begin(), costs.parameter_bytes.end()});
  };
}

SplitPolicy equal_cost(int32_t stages) {
  check_stages(stages);
  return [stages](const Graph& graph) {
    const NodeCosts costs(graph);
    return equal_shares(graph, stages, {costs.flops.begin(), costs.flops.end()});
  };
}

SplitPolicy equal_operators(int32_t stages) {
  check_stages(stages);
  return [stages](const Graph& graph) {
    std::vector<double> weights;
    for (const GraphNode& node : graph.parts().nodes) weights.push_back(is_marker(node) ? 0 : 1);
    return equal_shares(graph, stages, weights);
  };
}

}  // namespace stagecraft
