#include "stagecraft/plan/least_need.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/paired_need.h"

namespace stagecraft {
namespace plan {
namespace {

double stage_need(const StageComposer& composer, int32_t first, int32_t end, bool recompute) {
  const StageLoad load = composer.stage(first, end, recompute, false);
  double peak = load.memory_forward + std::max(load.peak_forward, load.peak_input);
  if (load.is_split) {
    peak =
        std::max({peak, load.memory_input + load.peak_input, load.memory_input + load.peak_weight});
  }
  return composer.fixed_memory(first, end) + composer.largest_size() * peak;
}

}  // namespace

std::pair<double, bool> least_stage_need(const StageComposer& composer, int32_t first, int32_t end,
                                         RecomputeChoice recompute) {
  const double kept = stage_need(composer, first, end, false);
  const double again = stage_need(composer, first, end, true);
  if (recompute == RecomputeChoice::kNone) return {kept, false};
  if (recompute == RecomputeChoice::kAll) return {again, true};
  return again < kept ? std::pair(again, true) : std::pair(kept, false);
}

LeastMemory with_one_stage(const StageComposer& composer, const Shares& shares,
                           RecomputeChoice recompute) {
  SC_ASSERT(static_cast<std::size_t>(composer.num_layers()) >= shares.size());
  const int32_t layers = composer.num_layers();
  const auto ranks = static_cast<int32_t>(shares.size());
  const Balanced best = balance_any(layers, ranks, [&](int32_t rank, int32_t first, int32_t end) {
    return least_stage_need(composer, first, end, recompute).first /
           shares[static_cast<std::size_t>(rank)];
  });
  LeastMemory least{.memory = best.largest};
  least.choice.begins = best.begins;
  for (int32_t s = 0; s < ranks; ++s) {
    const int32_t end = s + 1 < ranks ? best.begins[static_cast<std::size_t>(s) + 1] : layers;
    least.choice.recompute.push_back(
        least_stage_need(composer, best.begins[static_cast<std::size_t>(s)], end, recompute)
            .second);
  }
  return least;
}

namespace {

double largest_need(const StageComposer& composer, const PlanChoice& choice, const Shares& shares) {
  const std::vector<double> needs = memory_needs(composer, choice);
  double largest = 0;
  for (std::size_t r = 0; r < needs.size(); ++r) largest = std::max(largest, needs[r] / shares[r]);
  return largest;
}

/// Moves boundaries and toggles recompute while this reduces the need of the fullest rank.
LeastMemory improve_need(const StageComposer& composer, PlanChoice choice, const Shares& shares,
                         bool may_toggle) {
  LeastMemory least{largest_need(composer, choice, shares), std::move(choice)};
  bool better = true;
  const auto try_one = [&](PlanChoice tried) {
    for (std::size_t s = 1; s < tried.begins.size(); ++s) {
      if (tried.begins[s] <= tried.begins[s - 1]) return;
    }
    if (tried.begins.back() >= composer.num_layers()) return;
    const double need = largest_need(composer, tried, shares);
    if (need >= least.memory * (1 - 1e-12)) return;
    least = {need, std::move(tried)};
    better = true;
  };
  while (better) {
    better = false;
    for (std::size_t s = 0; s < least.choice.begins.size(); ++s) {
      if (may_toggle) {
        PlanChoice toggled = least.choice;
        toggled.recompute[s] = !toggled.recompute[s];
        try_one(std::move(toggled));
      }
      if (s == 0) continue;
      for (const int32_t by : {-1, 1, -2, 2, -3, 3}) {
        // Moves a boundary alone, and together with up to three boundaries after it.
        for (std::size_t count = 1; count <= 4 && s + count <= least.choice.begins.size();
             ++count) {
          PlanChoice moved = least.choice;
          for (std::size_t k = 0; k < count; ++k) moved.begins[s + k] += by;
          try_one(std::move(moved));
        }
      }
    }
  }
  return least;
}

LeastMemory with_more_stages(const StageComposer& composer, const SearchSpace& space,
                             const Shares& shares, int32_t stages_per_rank,
                             PlacementStyle placement) {
  PlanChoice choice{.stages_per_rank = stages_per_rank,
                    .placement = placement,
                    .active_stages = least_active(composer.problem(), stages_per_rank)};
  const auto stages = static_cast<std::size_t>(stages_per_rank) * shares.size();
  const bool may_toggle = space.recompute == RecomputeChoice::kAuto;
  std::optional<LeastMemory> least;
  // Three starts: stages with equal memory, with equal weights, with equal numbers of layers.
  for (int32_t start = 0; start < 3; ++start) {
    std::vector<double> needs;
    for (int32_t l = 0; l < composer.num_layers(); ++l) {
      needs.push_back(start == 0   ? least_stage_need(composer, l, l + 1, space.recompute).first
                      : start == 1 ? composer.fixed_memory(l, l + 1)
                                   : 1);
    }
    choice.begins = balance(needs, std::vector<double>(stages, 1));
    for (const bool again : {false, true}) {
      if (again && space.recompute == RecomputeChoice::kNone) continue;
      if (!again && space.recompute == RecomputeChoice::kAll) continue;
      choice.recompute.assign(stages, again);
      LeastMemory one = improve_need(composer, choice, shares, may_toggle);
      if (!least || one.memory < least->memory) least = std::move(one);
    }
  }
  if (std::optional<LeastMemory> exact =
          least_paired_need(composer, shares, space.recompute, choice, least->memory)) {
    return *exact;
  }
  return *least;
}

}  // namespace

std::optional<LeastMemory> least_need(const StageComposer& composer, const SearchSpace& space,
                                      const Shares& shares) {
  std::optional<LeastMemory> least;
  const auto ranks = static_cast<int32_t>(shares.size());
  const auto offer = [&](LeastMemory one) {
    if (!least || one.memory < least->memory) least = std::move(one);
  };
  for (const int32_t per_rank : space.stages_per_rank) {
    if (per_rank * ranks > composer.num_layers()) continue;
    if (per_rank == 1) {
      offer(with_one_stage(composer, shares, space.recompute));
      continue;
    }
    for (const PlacementStyle placement : space.placements) {
      offer(with_more_stages(composer, space, shares, per_rank, placement));
    }
  }
  return least;
}

}  // namespace plan

std::vector<double> memory_needs(const StageComposer& composer, const PlanChoice& choice) {
  ScheduleProblem problem = composer.compose(choice);
  for (RankLimit& rank : problem.ranks) rank.cap = 0;
  std::vector<double> needs(problem.ranks.size(), 0);
  for (const Shortfall& one : find_shortfalls(problem)) {
    needs[one.rank.position()] = one.fixed + one.microbatch;
  }
  return needs;
}

std::optional<LeastMemory> least_memory(const StageComposer& composer, const SearchSpace& space) {
  return plan::least_need(composer, space, plan::Shares(composer.problem().ranks.size(), 1));
}

std::optional<PlanChoice> choose_for_memory(const StageComposer& composer,
                                            const SearchSpace& space) {
  plan::Shares shares;
  bool limited = false;
  for (const PlanRank& rank : composer.problem().ranks) {
    limited = limited || rank.memory.has_value();
    shares.push_back(rank.memory.value_or(1e300));
  }
  if (!limited) return std::nullopt;
  std::optional<LeastMemory> least = plan::least_need(composer, space, shares);
  if (!least) return std::nullopt;
  return std::move(least->choice);
}

}  // namespace stagecraft
