#include "stagecraft/plan/evaluate_schedule.h"

#include <algorithm>
#include <cstddef>
#include <deque>
#include <map>
#include <set>
#include <span>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"

namespace stagecraft {
namespace {

/// The stages of a choice with split and with whole backwards.
struct StageWays {
  IndexedVector<StageId, StageLoad> split;
  IndexedVector<StageId, StageLoad> whole;
};

StageWays both_ways(const StageComposer& composer, const PlanChoice& choice) {
  PlanChoice whole = choice;
  whole.whole_backward = true;
  return {.split = IndexedVector<StageId, StageLoad>(composer.compose(choice).stages),
          .whole = IndexedVector<StageId, StageLoad>(composer.compose(whole).stages)};
}

/// The most memory of whole gradients at the same time. A stage has whole gradients from its first
/// backward on. Complete gradients are reduced while the next stages run. Replicas gather each
/// other's weights, so they are at most `active` stages apart: a reduction is over when `active`
/// further stages are complete.
double most_gradients(const IndexedVector<StageId, HeldMemory>& stages,
                      std::span<const Action> list, int32_t active) {
  std::map<StageId, std::size_t> last;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (makes_weight_gradients(list[i].type())) last[list[i].stage()] = i;
  }
  std::set<StageId> held;
  std::deque<StageId> complete;
  double now = 0;
  double most = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!makes_weight_gradients(list[i].type())) continue;
    const StageId stage = list[i].stage();
    if (held.insert(stage).second) now += stages[stage].gradients;
    most = std::max(most, now);
    if (last[stage] != i) continue;
    complete.push_back(stage);
    if (complete.size() <= static_cast<std::size_t>(active)) continue;
    now -= stages[complete.front()].gradients;
    complete.pop_front();
  }
  return most;
}

/// The memory that the rank holds all the time.
double fixed_of_rank(const StageComposer& composer, const PlanChoice& choice,
                     const IndexedVector<StageId, HeldMemory>& stages, const Schedule& schedule,
                     Rank rank) {
  double fixed = 0;
  for (const StageId stage : schedule.placement().stages(rank)) {
    fixed += stages[stage].pieces;
  }
  if (!composer.problem().sharding.has_gathers()) return fixed;
  return fixed + most_gradients(stages, schedule.actions(rank), choice.most_active());
}

double rank_peak(const StageWays& ways, const PlanProblem& problem,
                 const IndexedVector<StageId, HeldMemory>& stages, std::span<const Action> list,
                 double fixed) {
  double held = fixed;
  double peak = fixed;
  for (const Action action : list) {
    if (action.type() == ActionType::kUnshard || action.type() == ActionType::kReshard) {
      const double gathered = stages[action.stage()].gathered;
      held += action.type() == ActionType::kUnshard ? gathered : -gathered;
      peak = std::max(peak, held);
    }
    if (!is_compute(action.type())) continue;
    const StageLoad& split = ways.split[action.stage()];
    const StageLoad& whole = ways.whole[action.stage()];
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

void require_gathers(const PlanProblem& problem, const Schedule& schedule) {
  if (!problem.sharding.has_gathers()) return;
  for (const ActionList& list : schedule.lists()) {
    const bool has_any = std::any_of(list.begin(), list.end(), [](Action action) {
      return action.type() == ActionType::kUnshard;
    });
    if (has_any || list.empty()) continue;
    throw ScheduleError("parameters are sharded, so the schedule needs UNSHARD and RESHARD", {});
  }
}

}  // namespace

CostModel choice_costs(const StageComposer& composer, const PlanChoice& choice,
                       const Schedule& schedule) {
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
  if (!composer.problem().sharding.has_gathers()) return costs;
  const IndexedVector<StageId, HeldMemory> stages = composer.held_by_stage(choice);
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    costs.gather.push_back(composer.gather(choice.begins[s], composer.end_of(choice, s)));
  }
  for (const HeldMemory& stage : stages) costs.gathered.push_back(stage.gathered);
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    const auto own = schedule.placement().stages(Rank(r));
    if (own.empty()) continue;
    costs.weights[own.front().position()] =
        fixed_of_rank(composer, choice, stages, schedule, Rank(r));
  }
  return costs;
}

Simulation simulate_choice(const StageComposer& composer, const PlanChoice& choice,
                           const Schedule& schedule) {
  return simulate(schedule, choice_costs(composer, choice, schedule));
}

Evaluation evaluate_schedule(const StageComposer& composer, const PlanChoice& choice,
                             const Schedule& schedule) {
  require_whole_where_recomputed(choice, schedule);
  require_gathers(composer.problem(), schedule);
  const Simulation run = simulate_choice(composer, choice, schedule);
  const PlanProblem& problem = composer.problem();
  Evaluation result;
  result.makespan = run.makespan;
  result.span = run.span;
  result.bubble = run.bubble;
  result.transfers = run.transfers;
  result.exposed_gather = run.exposed_gather;
  const IndexedVector<StageId, HeldMemory> stages = composer.held_by_stage(choice);
  const StageWays ways = both_ways(composer, choice);
  double closest = -1;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    const double peak = rank_peak(ways, problem, stages, schedule.actions(Rank(r)),
                                  fixed_of_rank(composer, choice, stages, schedule, Rank(r)));
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
