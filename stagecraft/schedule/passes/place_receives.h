#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// Moves every receive to `prefetch` slots of compute before the slot that reads its value (0:
/// directly before that slot). This bounds the number of buffers that wait for values. If ranks
/// would then wait for each other, each in a send whose receive the other rank has not posted, one
/// receive is posted earlier, but as late as possible.
///
/// A rank may then post its receives in a different order than the other rank sends. Transfers are
/// matched by stage and microbatch here, so this is safe. PyTorch matches them by their order: a
/// file for PyTorch keeps its receives where add_transfers puts them.
///
/// ArgumentError unless the level is kLowered and prefetch >= 0. ScheduleError unless `verify`
/// finds the schedule good in kPartial mode. With kYes the caller has found it good.
Schedule place_receives(const Schedule& schedule, int32_t prefetch, const StageGraph& graph,
                        Verified verified = Verified::kNo);
/// For a chain of stages.
Schedule place_receives(const Schedule& schedule, int32_t prefetch);

}  // namespace stagecraft
