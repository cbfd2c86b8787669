#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A schedule as the problem's replicas run it.
struct UnshardedSchedule {
  Schedule schedule;  ///< with UNSHARD and RESHARD if parameters are sharded
  Evaluation result;
  std::vector<int32_t> lookahead = {};  ///< by rank (shard_stages); empty without them
};

/// Adds UNSHARD and RESHARD, with at most the choice's active stages, unless parameters are whole.
/// The lookahead is the problem's or, without one, the largest; if a rank is then above its memory,
/// the first of Lookahead::kAuto and 1 on each rank that fits. Throws as evaluate_schedule.
///
/// REQUIRES a schedule without UNSHARD.
UnshardedSchedule add_unshards(const StageComposer& composer, const PlanChoice& choice,
                               const Schedule& schedule);

/// The same schedule with the smallest lookahead that costs no time and fits. `found` as it is if
/// the problem has a lookahead, if nothing is smaller, and for a schedule that is too large to try.
UnshardedSchedule with_least_lookahead(const StageComposer& composer, const PlanChoice& choice,
                                       UnshardedSchedule found);

/// The schedule without UNSHARD and RESHARD.
Schedule without_unshards(const Schedule& schedule);

}  // namespace stagecraft
