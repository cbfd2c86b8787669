#include "stagecraft/plan/split_starts.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "stagecraft/plan/balance.h"

namespace stagecraft::plan {
namespace {

std::size_t place_of(int32_t number) {
  return static_cast<std::size_t>(number);
}

std::vector<double> weigh(const StageComposer& composer, Weighing weighing) {
  std::vector<double> costs;
  for (int32_t l = 0; l < composer.num_layers(); ++l) {
    switch (weighing) {
      case Weighing::kWork:
        costs.push_back(composer.work(l, l + 1));
        break;
      case Weighing::kWorkWithRecompute:
        costs.push_back(composer.work(l, l + 1, true));
        break;
      case Weighing::kForward:
        costs.push_back(composer.forward(l, l + 1));
        break;
      case Weighing::kMemory:
        costs.push_back(composer.fixed_memory(l, l + 1));
        break;
    }
  }
  return costs;
}

}  // namespace

bool differ(const std::vector<PlanRank>& ranks) {
  return std::any_of(ranks.begin(), ranks.end(),
                     [&](const PlanRank& rank) { return rank != ranks.front(); });
}

PlanChoice first_choice(const StageComposer& composer, int32_t stages_per_rank,
                        PlacementStyle placement, Weighing weighing) {
  const PlanProblem& problem = composer.problem();
  PlanChoice choice{.stages_per_rank = stages_per_rank, .placement = placement};
  const int32_t stages = stages_per_rank * problem.num_ranks();
  choice.recompute.assign(place_of(stages), false);
  choice.begins.assign(place_of(stages), 0);
  if (differ(problem.ranks)) {
    for (int32_t r = 0; r < problem.num_ranks(); ++r) choice.rank_order.push_back(r);
  }
  const Placement where = place_stages(choice, problem.num_ranks());
  std::vector<double> speeds;
  for (const Rank rank : where.ranks()) {
    const PlanRank& kind = problem.ranks[rank.position()];
    speeds.push_back(weighing == Weighing::kMemory ? kind.memory.value_or(1) : kind.speed);
  }
  choice.begins = balance(weigh(composer, weighing), speeds);
  return choice;
}

std::vector<std::vector<bool>> recompute_patterns(int32_t stages) {
  std::vector<std::vector<bool>> patterns;
  for (int32_t quarter = 0; quarter <= 4; ++quarter) {
    const int32_t count = stages * quarter / 4;
    std::vector<bool> first(place_of(stages), false);
    std::vector<bool> last(place_of(stages), false);
    for (int32_t s = 0; s < count; ++s) first[place_of(s)] = true;
    for (int32_t s = stages - count; s < stages; ++s) last[place_of(s)] = true;
    for (auto* pattern : {&first, &last}) {
      if (std::find(patterns.begin(), patterns.end(), *pattern) == patterns.end()) {
        patterns.push_back(std::move(*pattern));
      }
    }
  }
  return patterns;
}

}  // namespace stagecraft::plan
