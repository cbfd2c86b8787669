#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A schedule with the gathers that the problem's replicas need.
struct UnshardedSchedule {
  Schedule schedule;  ///< with UNSHARD and RESHARD if parameters are sharded
  Evaluation result;
  std::vector<int32_t> lookahead = {};  ///< by rank (shard_stages); empty without them
};

/// Adds UNSHARD and RESHARD with at most the choice's active stages, if parameters are sharded. The
/// lookahead is that of the problem. Without one, it is the largest. If a rank is then above its
/// memory, it is the first that fits of Lookahead::kAuto and 1 on each rank. Throws as
/// evaluate_schedule.
///
/// REQUIRES a schedule without UNSHARD.
UnshardedSchedule add_unshards(const StageComposer& composer, const PlanChoice& choice,
                               const Schedule& schedule);

/// The same schedule with the smallest lookahead that costs no time and fits. Returns `found`
/// unchanged if the problem has a lookahead, if there is no smaller one, and for a schedule that is
/// too large to try.
UnshardedSchedule with_least_lookahead(const StageComposer& composer, const PlanChoice& choice,
                                       UnshardedSchedule found);

/// The schedule without UNSHARD and RESHARD.
Schedule without_unshards(const Schedule& schedule);

}  // namespace stagecraft
