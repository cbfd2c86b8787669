#include "stagecraft/plan/memory_need.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/base/text_cursor.h"
#include "stagecraft/base/text_table.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/unlimited.h"
#include "stagecraft/sim/quantity.h"

namespace stagecraft {
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

/// The cheapest way to keep the layers as one stage.
std::pair<double, bool> least_stage_need(const StageComposer& composer, int32_t first, int32_t end,
                                         RecomputeChoice recompute) {
  const double kept = stage_need(composer, first, end, false);
  const double again = stage_need(composer, first, end, true);
  if (recompute == RecomputeChoice::kNone) return {kept, false};
  if (recompute == RecomputeChoice::kAll) return {again, true};
  return again < kept ? std::pair(again, true) : std::pair(kept, false);
}

/// What a rank's need is divided by: 1 for all if they are to be alike, or the rank's memory.
using Shares = std::vector<double>;

LeastMemory with_one_stage(const StageComposer& composer, const Shares& shares,
                           RecomputeChoice recompute) {
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

double largest_need(const StageComposer& composer, const PlanChoice& choice, const Shares& shares) {
  const std::vector<double> needs = memory_needs(composer, choice);
  double largest = 0;
  for (std::size_t r = 0; r < needs.size(); ++r) largest = std::max(largest, needs[r] / shares[r]);
  return largest;
}

/// Moves boundaries and toggles recompute for as long as the fullest rank needs less.
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
        // A boundary alone, and with its neighbours after it.
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
  PlanChoice choice{.stages_per_rank = stages_per_rank, .placement = placement};
  const auto stages = static_cast<std::size_t>(stages_per_rank) * shares.size();
  const bool may_toggle = space.recompute == RecomputeChoice::kAuto;
  std::optional<LeastMemory> least;
  // Starts: stages with the same memory, the same weights, the same number of layers.
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
  return *least;
}

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

// Three significant digits, rounded up: enough memory whatever the digits that are left out.
std::string memory_option(const PlanProblem& problem, double memory) {
  const double unit = problem.units.bytes ? 1e9 : 1;
  const double amount = memory / unit;
  const double digits =
      problem.units.bytes ? std::pow(10, 2 - std::floor(std::log10(std::max(amount, 1e-9)))) : 1;
  const double rounded = std::ceil(amount * digits * (1 - 1e-12)) / digits;
  return problem.units.bytes ? fmt::format("{:g}GB", rounded) : format_number(rounded);
}

std::string layer_text(const PlanProblem& problem, int32_t layer) {
  const std::string& name = problem.layers[static_cast<std::size_t>(layer)].name;
  return name.empty() ? fmt::format("layer {}", layer)
                      : fmt::format("layer {} ({})", layer, quote(name));
}

std::string stages_text(std::span<const StageId> stages) {
  std::vector<int32_t> numbers;
  for (const StageId stage : stages) numbers.push_back(stage.value());
  if (numbers.size() == 1) return fmt::format("stage {}", numbers.front());
  const int32_t last = numbers.back();
  numbers.pop_back();
  return fmt::format("stages {} and {}", fmt::join(numbers, ", "), last);
}

std::optional<std::string> explain_rank(const StageComposer& composer, const PlanChoice& choice) {
  const PlanProblem& problem = composer.problem();
  const ScheduleProblem stages = composer.compose(choice);
  const std::vector<Shortfall> shortfalls = find_shortfalls(stages);
  if (shortfalls.empty()) return std::nullopt;
  const Shortfall& worst = *std::max_element(
      shortfalls.begin(), shortfalls.end(),
      [](const Shortfall& a, const Shortfall& b) { return a.lacks() < b.lacks(); });
  return fmt::format(
      "does not fit: rank {} lacks {} for {} ({}: {} with gradients and the optimizer's state, {} "
      "given, {} needed for one microbatch)",
      worst.rank.value(), format_memory(problem, worst.lacks()),
      worst.is_fixed_alone() ? "its weights alone" : "one microbatch",
      stages_text(stages.placement.stages(worst.rank)), format_memory(problem, worst.fixed),
      format_memory(problem, worst.cap), format_memory(problem, worst.microbatch));
}

std::optional<std::string> explain_layer(const StageComposer& composer, const SearchSpace& space) {
  const PlanProblem& problem = composer.problem();
  double most = 0;
  for (const PlanRank& rank : problem.ranks)
    most = std::max(most, rank.memory.value_or(plan::kUnlimited));
  for (int32_t l = 0; l < composer.num_layers(); ++l) {
    const double need = least_stage_need(composer, l, l + 1, space.recompute).first;
    if (need <= most) continue;
    return fmt::format("does not fit: {} alone needs {}, and no rank has more than {}",
                       layer_text(problem, l), format_memory(problem, need),
                       format_memory(problem, most));
  }
  return std::nullopt;
}

// With the smallest memory that a rank has.
std::optional<std::string> explain_more_ranks(const StageComposer& composer,
                                              const SearchSpace& space) {
  const PlanProblem& problem = composer.problem();
  double memory = plan::kUnlimited;
  for (const PlanRank& rank : problem.ranks) {
    memory = std::min(memory, rank.memory.value_or(plan::kUnlimited));
  }
  for (int32_t ranks = problem.num_ranks() + 1; ranks <= composer.num_layers(); ++ranks) {
    if (with_one_stage(composer, Shares(static_cast<std::size_t>(ranks), 1), space.recompute)
            .memory > memory)
      continue;
    return fmt::format("does not fit: {} ranks of {} would do", ranks,
                       format_memory(problem, memory));
  }
  return std::nullopt;
}

}  // namespace

DoesNotFit::DoesNotFit(std::vector<std::string> lines)
    : Error(fmt::format("{}", fmt::join(lines, "; "))), lines_(std::move(lines)) {}

std::string format_memory(const PlanProblem& problem, double memory) {
  return problem.units.bytes ? format_bytes(memory) : format_number(memory);
}

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
  return least_need(composer, space, Shares(composer.problem().ranks.size(), 1));
}

std::optional<PlanChoice> choose_for_memory(const StageComposer& composer,
                                            const SearchSpace& space) {
  Shares shares;
  bool limited = false;
  for (const PlanRank& rank : composer.problem().ranks) {
    limited = limited || rank.memory.has_value();
    shares.push_back(rank.memory.value_or(1e300));
  }
  if (!limited) return std::nullopt;
  std::optional<LeastMemory> least = least_need(composer, space, shares);
  if (!least) return std::nullopt;
  return std::move(least->choice);
}

std::vector<std::string> explain_unfit(const StageComposer& composer, const SearchSpace& space,
                                       const PlanChoice& nearest) {
  std::vector<std::string> lines;
  const PlanProblem& problem = composer.problem();
  if (std::optional<std::string> line = explain_layer(composer, space)) lines.push_back(*line);
  if (std::optional<std::string> line = explain_rank(composer, nearest)) lines.push_back(*line);
  if (const std::optional<LeastMemory> least = least_memory(composer, space)) {
    const std::string option = memory_option(problem, least->memory);
    lines.push_back(fmt::format(
        "does not fit{}; the smallest memory that fits {} ranks is {} a rank (plan with --memory "
        "{})",
        space.recompute == RecomputeChoice::kNone ? "" : " even with recompute",
        problem.num_ranks(),
        problem.units.bytes ? fmt::format("{} GB", option.substr(0, option.size() - 2)) : option,
        option));
  }
  if (std::optional<std::string> line = explain_more_ranks(composer, space)) {
    lines.push_back(*line);
  }
  return lines;
}

}  // namespace stagecraft
