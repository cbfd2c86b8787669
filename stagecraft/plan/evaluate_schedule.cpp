#include "stagecraft/plan/evaluate_schedule.h"

#include <algorithm>
#include <cstddef>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

/// A stage both ways: backward in two halves, and whole.
struct StageWays {
  std::vector<StageLoad> split;
  std::vector<StageLoad> whole;
};

StageWays both_ways(const StageComposer& composer, const PlanChoice& choice) {
  PlanChoice whole = choice;
  whole.whole_backward = true;
  return {composer.compose(choice).stages, composer.compose(whole).stages};
}

double rank_peak(const StageWays& ways, const PlanProblem& problem, std::span<const Action> list,
                 double fixed) {
  double held = fixed;
  double peak = fixed;
  for (const Action action : list) {
    if (!is_compute(action.type())) continue;
    const StageLoad& split = ways.split[action.stage().position()];
    const StageLoad& whole = ways.whole[action.stage().position()];
    const double size = problem.sizes.empty() ? 1.0 : problem.sizes[action.microbatch().position()];
    const auto run = [&](double before, double beside, double after) {
      held += size * before;
      peak = std::max(peak, held + size * beside);
      held += size * after;
    };
    switch (action.type()) {
      case ActionType::kForward:
        run(split.memory_forward, split.peak_forward, 0);
        break;
      case ActionType::kBackward:
        run(0, whole.peak_input, -whole.memory_forward);
        break;
      case ActionType::kBackwardInput:
        run(std::max(0.0, split.memory_input - split.memory_forward), split.peak_input,
            std::min(0.0, split.memory_input - split.memory_forward));
        break;
      case ActionType::kBackwardWeight:
        run(0, split.peak_weight, -split.memory_input);
        break;
      default:
        break;
    }
  }
  return peak;
}

void require_whole_where_recomputed(const PlanChoice& choice, const Schedule& schedule) {
  if (!choice.recomputes()) return;
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      if (action.type() != ActionType::kBackwardInput) continue;
      if (choice.recompute[action.stage().position()]) {
        throw ScheduleError(fmt::format("stage {} recomputes, so its backward cannot be split",
                                        action.stage().value()),
                            {});
      }
    }
  }
}

}  // namespace

CostModel choice_costs(const StageComposer& composer, const PlanChoice& choice) {
  PlanChoice whole = choice;
  whole.whole_backward = true;
  CostModel costs = cost_model(composer.compose(choice));
  const CostModel with_whole = cost_model(composer.compose(whole));
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    costs.stages[s].backward = with_whole.stages[s].backward;
  }
  for (std::size_t i = 0; i < costs.microbatches.size(); ++i) {
    costs.microbatches[i].cost.backward = with_whole.microbatches[i].cost.backward;
  }
  return costs;
}

Simulation simulate_choice(const StageComposer& composer, const PlanChoice& choice,
                           const Schedule& schedule) {
  return simulate(schedule, choice_costs(composer, choice));
}

Evaluation evaluate_schedule(const StageComposer& composer, const PlanChoice& choice,
                             const Schedule& schedule) {
  require_whole_where_recomputed(choice, schedule);
  const Simulation run = simulate_choice(composer, choice, schedule);
  const PlanProblem& problem = composer.problem();
  Evaluation result;
  result.makespan = run.makespan;
  result.span = run.span;
  result.bubble = run.bubble;
  result.transfers = run.transfers;
  const ScheduleProblem stages = composer.compose(choice);
  const StageWays ways = both_ways(composer, choice);
  double closest = -1;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    const double peak = rank_peak(ways, problem, schedule.actions(Rank(r)), stages.ranks[at].fixed);
    result.peaks.push_back(peak);
    const std::optional<double>& memory = problem.ranks[at].memory;
    const double share = memory ? peak / *memory : peak;
    if (share > closest) {
      closest = share;
      result.fullest_rank = r;
    }
    if (memory && peak > *memory * (1 + 1e-9)) result.fits = false;
  }
  return result;
}

}  // namespace stagecraft
