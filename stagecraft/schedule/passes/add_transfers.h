#pragma once

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// Inserts SEND_F, RECV_F, SEND_B and RECV_B, and so makes a lowered schedule. Idle slots go.
///
/// A send stands right behind the action that makes the value, and is for all stages on other ranks
/// that read it. A receive stands where its rank had got to when the first of its values was sent,
/// if each rank did one slot at a time in turn; it is for all values that the stage gets from other
/// ranks. So every rank's list is part of one order in which each receive follows right behind its
/// first send, and no rank can wait for ever.
///
/// REQUIRES level kCompute and a schedule that `verify` finds good in kPartial mode
/// (ScheduleError).
Schedule add_transfers(const Schedule& schedule, const StageGraph& graph);
/// For a chain of stages.
Schedule add_transfers(const Schedule& schedule);

}  // namespace stagecraft
