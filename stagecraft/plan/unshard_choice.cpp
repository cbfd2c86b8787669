#include "stagecraft/plan/unshard_choice.h"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "stagecraft/base/assert.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/unshard_lookahead.h"

namespace stagecraft {
namespace {

/// The most actions that are simulated to find a lookahead, which takes about two seconds.
constexpr int64_t kMostLookaheadSteps = 5'000'000;

/// The lookahead of each rank. Given numbers are reduced to the active stages of the choice, which
/// may be fewer.
std::vector<int32_t> resolve(const UnshardLookahead& lookahead, int32_t ranks, int32_t active) {
  if (const auto* given = std::get_if<std::vector<int32_t>>(&lookahead)) {
    std::vector<int32_t> numbers = *given;
    for (int32_t& number : numbers) number = std::min(number, active);
    return resolve_lookahead(numbers, ranks, active);
  }
  return resolve_lookahead(lookahead, ranks, active);
}

UnshardedSchedule unshard_with(const StageComposer& composer, const PlanChoice& choice,
                               const Schedule& schedule, std::vector<int32_t> lookahead) {
  Schedule sharded = shard_stages(schedule, choice.most_active(), lookahead);
  Evaluation result = evaluate_schedule(composer, choice, sharded);
  return {std::move(sharded), std::move(result), std::move(lookahead)};
}

}  // namespace

UnshardedSchedule add_unshards(const StageComposer& composer, const PlanChoice& choice,
                               const Schedule& schedule) {
  SC_ASSERT(!has_any(schedule, {ActionType::kUnshard}));
  const PlanSharding& sharding = composer.problem().sharding;
  if (!sharding.has_gathers()) {
    return {schedule, evaluate_schedule(composer, choice, schedule)};
  }
  const int32_t ranks = schedule.num_ranks();
  const int32_t active = choice.most_active();
  UnshardedSchedule found =
      unshard_with(composer, choice, schedule,
                   resolve(sharding.lookahead.value_or(Lookahead::kFull), ranks, active));
  if (found.result.fits || sharding.lookahead || active == 1) return found;
  const std::vector<int32_t> ones(static_cast<std::size_t>(ranks), 1);
  for (std::vector<int32_t> fewer : {resolve(Lookahead::kAuto, ranks, active), ones}) {
    if (fewer == found.lookahead) continue;
    UnshardedSchedule tried = unshard_with(composer, choice, schedule, std::move(fewer));
    if (tried.result.fits) return tried;
  }
  return found;
}

UnshardedSchedule with_least_lookahead(const StageComposer& composer, const PlanChoice& choice,
                                       UnshardedSchedule found) {
  const PlanSharding& sharding = composer.problem().sharding;
  const int32_t active = choice.most_active();
  if (!sharding.has_gathers() || sharding.lookahead || active == 1) return found;
  const int64_t steps = found.schedule.num_actions() * found.schedule.num_ranks() * active;
  if (steps > kMostLookaheadSteps) return found;
  const Schedule plain = without_unshards(found.schedule);
  const std::vector<int32_t> least = find_unshard_lookahead(
      plain, choice_costs(composer, choice, plain), StageGraph::chain(plain.num_stages()), active);
  UnshardedSchedule tried = unshard_with(composer, choice, plain, least);
  const Objective objective = composer.objective();
  const bool is_slower = tried.result.value(objective) > found.result.value(objective) * (1 + 1e-9);
  if (!tried.result.fits || is_slower) return found;
  return tried;
}

Schedule without_unshards(const Schedule& schedule) {
  std::vector<ActionList> lists = schedule.lists();
  for (ActionList& list : lists) {
    std::erase_if(list, [](Action action) {
      return action.type() == ActionType::kUnshard || action.type() == ActionType::kReshard;
    });
  }
  return {schedule.level(), schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
