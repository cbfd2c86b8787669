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

LeastMemory with_one_stage(const StageComposer& composer, int32_t ranks,
                           RecomputeChoice recompute) {
  const int32_t layers = composer.num_layers();
  const Balanced best = balance_any(layers, ranks, [&](int32_t, int32_t first, int32_t end) {
    return least_stage_need(composer, first, end, recompute).first;
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

double largest_need(const StageComposer& composer, const PlanChoice& choice) {
  const std::vector<double> needs = memory_needs(composer, choice);
  return *std::max_element(needs.begin(), needs.end());
}

/// Moves boundaries and toggles recompute for as long as the fullest rank needs less.
LeastMemory improve_need(const StageComposer& composer, PlanChoice choice, bool may_toggle) {
  LeastMemory least{largest_need(composer, choice), std::move(choice)};
  bool better = true;
  const auto try_one = [&](PlanChoice tried) {
    const double need = largest_need(composer, tried);
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
      for (const int32_t by : {-1, 1, -2, 2}) {
        if (s == 0) continue;
        PlanChoice moved = least.choice;
        moved.begins[s] += by;
        const int32_t end =
            s + 1 < moved.begins.size() ? moved.begins[s + 1] : composer.num_layers();
        if (moved.begins[s] <= moved.begins[s - 1] || moved.begins[s] >= end) continue;
        try_one(std::move(moved));
      }
    }
  }
  return least;
}

LeastMemory with_more_stages(const StageComposer& composer, const SearchSpace& space,
                             int32_t stages_per_rank, PlacementStyle placement) {
  const int32_t ranks = composer.problem().num_ranks();
  PlanChoice choice{.stages_per_rank = stages_per_rank, .placement = placement};
  const auto stages = static_cast<std::size_t>(stages_per_rank * ranks);
  std::vector<double> needs;
  for (int32_t l = 0; l < composer.num_layers(); ++l) {
    needs.push_back(least_stage_need(composer, l, l + 1, space.recompute).first);
  }
  choice.begins = balance(needs, std::vector<double>(stages, 1));
  choice.recompute.assign(stages, space.recompute != RecomputeChoice::kNone);
  return improve_need(composer, std::move(choice), space.recompute == RecomputeChoice::kAuto);
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
    if (with_one_stage(composer, ranks, space.recompute).memory > memory) continue;
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
  std::optional<LeastMemory> least;
  const int32_t ranks = composer.problem().num_ranks();
  const auto offer = [&](LeastMemory one) {
    if (!least || one.memory < least->memory) least = std::move(one);
  };
  for (const int32_t per_rank : space.stages_per_rank) {
    if (per_rank * ranks > composer.num_layers()) continue;
    if (per_rank == 1) {
      offer(with_one_stage(composer, ranks, space.recompute));
      continue;
    }
    for (const PlacementStyle placement : space.placements) {
      offer(with_more_stages(composer, space, per_rank, placement));
    }
  }
  return least;
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
