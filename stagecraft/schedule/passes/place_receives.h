#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// Moves every receive to where it is needed: in front of the slot of compute that comes `prefetch`
/// slots of compute before the one that reads it (0: directly in front of it), so that no more
/// buffers wait for values than that. Where ranks would then wait for each other, each with a send
/// whose receive the other has not posted, a receive is posted as early as that takes and no
/// earlier.
///
/// Two ranks may then post receives in another order than the other sends, so transfers have to be
/// matched by stage and microbatch, as they are here. PyTorch matches them by their order: a file
/// for it keeps its receives where add_transfers puts them.
///
/// REQUIRES level kLowered, a schedule that `verify` finds good in kPartial mode (ScheduleError),
/// and prefetch >= 0 (ArgumentError).
Schedule place_receives(const Schedule& schedule, int32_t prefetch, const StageGraph& graph);
/// For a chain of stages.
Schedule place_receives(const Schedule& schedule, int32_t prefetch);

}  // namespace stagecraft
