#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// A run in lock-step in which every action takes one step, transfers included, as in PyTorch's
/// simulator of lowered schedules.
struct UnitSteps {
  /// A slot of a rank's list (Slot::position) and the step in which the rank did it, from 0.
  struct Done {
    int64_t slot = 0;
    int64_t step = 0;

    friend bool operator==(const Done&, const Done&) = default;
  };
  /// By rank, in the order of the list; in the steps between, the rank waited.
  std::vector<std::vector<Done>> ranks;
  /// The number of steps, until the last rank has finished.
  int64_t steps = 0;
};

/// UNSHARD, RESHARD, REDUCE_GRAD, its wait and idle slots take no step; an overlap takes one. A
/// receive waits for its send, and a wait for a send waits for the receives of that send. A receive
/// of several values, which PyTorch does not have, does not wait: the compute after it does. In one
/// step a rank sees the actions of ranks with lower numbers in the same step, and a rank that could
/// not act gets a second chance after all others. ScheduleError if the ranks wait for each other.
///
/// ScheduleError unless `verify` finds the schedule good in kPartial mode. With kYes the caller has
/// found it good, possibly with VerifyOptions::mixed_backward.
UnitSteps simulate_unit_steps(const Schedule& schedule, const StageGraph& graph,
                              Verified verified = Verified::kNo);
/// For a chain of stages.
UnitSteps simulate_unit_steps(const Schedule& schedule);

}  // namespace stagecraft
