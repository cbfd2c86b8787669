#pragma once

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// Inserts SEND_F, RECV_F, SEND_B and RECV_B, and so makes a lowered schedule. Removes idle slots.
///
/// A send comes directly after the action that makes the value. It is for all stages on other ranks
/// that read the value. A receive is for all values that the stage gets from other ranks. Its place
/// follows from a run in which the ranks take turns, one slot each: it comes where its rank is when
/// the first of the values is sent. So all lists are parts of one order in which each receive comes
/// directly after its first send, and no rank can wait for ever.
///
/// ArgumentError unless the level is kCompute. ScheduleError unless `verify` finds the schedule
/// good in kPartial mode. With kYes the caller has found it good, possibly with
/// VerifyOptions::mixed_backward.
Schedule add_transfers(const Schedule& schedule, const StageGraph& graph,
                       Verified verified = Verified::kNo);
/// For a chain of stages.
Schedule add_transfers(const Schedule& schedule);

}  // namespace stagecraft
