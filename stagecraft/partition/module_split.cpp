#include "stagecraft/partition/module_split.h"

#include <algorithm>
#include <limits>
#include <tuple>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/split.h"

namespace stagecraft {

namespace {

/// The most steps of the search, which take about a second.
constexpr std::size_t kMostSteps = 300'000'000;

/// The FLOP of the largest stage, then the bytes of the largest boundary. Less is better.
using Cost = std::pair<int64_t, int64_t>;

/// The best way to end a stage before a candidate: its cost, and the candidate where the stage
/// begins.
struct Choice {
  Cost cost = {std::numeric_limits<int64_t>::max(), 0};
  std::size_t begin = 0;
};

}  // namespace

std::optional<ModuleSplit> best_module_split(const std::vector<Boundary>& boundaries,
                                             int64_t total_flops, std::size_t stages,
                                             std::size_t depth) {
  // Candidate 0 is the beginning of the model, candidate `end` its end. The others are boundaries.
  std::vector<const Boundary*> candidates;
  for (const Boundary& boundary : boundaries) {
    if (boundary.is_legal() && boundary.begins_module(depth)) candidates.push_back(&boundary);
  }
  const std::size_t end = candidates.size() + 1;
  if (stages < 2 || candidates.size() + 1 < stages || stages * end * end > kMostSteps) return {};
  auto flops_before = [&](std::size_t i) {
    return i == 0 ? 0 : i == end ? total_flops : candidates[i - 1]->flops_before;
  };
  auto bytes_at = [&](std::size_t i) { return i == 0 ? 0 : candidates[i - 1]->bytes; };
  // best[s][i]: the best way in which stages 0 to s contain everything before candidate i.
  std::vector<std::vector<Choice>> best(stages, std::vector<Choice>(end + 1));
  for (std::size_t i = 1; i <= end; ++i) best[0][i] = {{flops_before(i), 0}, 0};
  for (std::size_t s = 1; s < stages; ++s) {
    for (std::size_t i = s + 1; i <= end; ++i) {
      for (std::size_t begin = s; begin < i; ++begin) {
        const Cost before = best[s - 1][begin].cost;
        const Cost cost = {std::max(before.first, flops_before(i) - flops_before(begin)),
                           std::max(before.second, bytes_at(begin))};
        if (cost < best[s][i].cost) best[s][i] = {cost, begin};
      }
    }
  }
  ModuleSplit split;
  std::tie(split.flops, split.bytes) = best[stages - 1][end].cost;
  std::size_t at = end;
  for (std::size_t s = stages - 1; s > 0; --s) {
    at = best[s][at].begin;
    split.positions.push_back(candidates[at - 1]->position);
    split.names.push_back(candidates[at - 1]->names.front());
  }
  std::ranges::reverse(split.positions);
  std::ranges::reverse(split.names);
  return split;
}

SplitPolicy best_at_modules(int32_t stages, std::size_t depth) {
  require<ArgumentError>(stages >= 1, "expected at least 1 stage, got {}", stages);
  return [stages, depth](const Graph& graph) -> SplitPositions {
    if (stages == 1) return {};
    const NodeCosts costs(graph);
    const std::vector<Boundary> boundaries = find_boundaries(graph, costs);
    const std::size_t used = depth > 0 ? depth : ModuleExtents(graph).layer_depth();
    const auto split =
        best_module_split(boundaries, costs.total_flops, static_cast<std::size_t>(stages), used);
    require<ArgumentError>(split.has_value(),
                           "the model cannot be split into {} stages at modules of depth {} or "
                           "less: {} of them begin where it can be split",
                           stages, used,
                           std::ranges::count_if(boundaries, [&](const Boundary& each) {
                             return each.is_legal() && each.begins_module(used);
                           }));
    return split->positions;
  };
}

}  // namespace stagecraft
