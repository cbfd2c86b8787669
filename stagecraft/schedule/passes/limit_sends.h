#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// Bounds the number of outstanding sends of a rank, F and B together: before a send that would
/// exceed `limit`, moves the wait for an earlier one there. Adds waits first if there are none.
///
/// It chooses the oldest outstanding send whose receives are known to be posted by then, so that
/// the wait takes no time; otherwise the oldest one whose wait cannot cause a deadlock. The choices
/// are those of torch 2.15's `max_outstanding_sends`, as long as torch finds one.
///
/// Takes time about linear in the number of actions, and memory for actions times ranks.
///
/// ArgumentError unless the level is kLowered and limit >= 1. ScheduleError unless `verify` finds
/// the schedule good in kPartial mode. Every such schedule can keep every limit.
Schedule limit_sends(const Schedule& schedule, int32_t limit, const StageGraph& graph);
/// For a chain of stages.
Schedule limit_sends(const Schedule& schedule, int32_t limit);

}  // namespace stagecraft
