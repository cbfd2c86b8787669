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
#include "stagecraft/plan/least_need.h"
#include "stagecraft/plan/unlimited.h"
#include "stagecraft/sim/quantity.h"

namespace stagecraft {
namespace {

// Three significant digits, rounded up, so that the printed memory is enough.
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
    const double need = plan::least_stage_need(composer, l, l + 1, space.recompute).first;
    if (need <= most) continue;
    return fmt::format("does not fit: {} alone needs {}, and no rank has more than {}",
                       layer_text(problem, l), format_memory(problem, need),
                       format_memory(problem, most));
  }
  return std::nullopt;
}

// Says how many ranks with the smallest memory of a rank would be enough.
std::optional<std::string> explain_more_ranks(const StageComposer& composer,
                                              const SearchSpace& space) {
  const PlanProblem& problem = composer.problem();
  double memory = plan::kUnlimited;
  for (const PlanRank& rank : problem.ranks) {
    memory = std::min(memory, rank.memory.value_or(plan::kUnlimited));
  }
  for (int32_t ranks = problem.num_ranks() + 1; ranks <= composer.num_layers(); ++ranks) {
    if (plan::with_one_stage(composer, plan::Shares(static_cast<std::size_t>(ranks), 1),
                             space.recompute)
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
