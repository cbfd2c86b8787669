#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// A lock-step run in which every action takes one step, transfers too, as PyTorch's simulator of
/// lowered schedules does it.
struct UnitSteps {
  /// slots[rank][step]: which slot of its list (Slot::position) the rank did in that step, or
  /// nothing when it waited. A rank's row ends with its last slot.
  std::vector<std::vector<std::optional<int64_t>>> slots;
  /// The number of steps: the length of the longest row.
  int64_t steps = 0;
};

/// UNSHARD, RESHARD, REDUCE_GRAD and idle slots take no step; an overlap takes one. In one step a
/// rank sees what ranks of lower number did in the same step, and a rank that could not act gets a
/// second chance after all others. ScheduleError when the ranks wait for each other.
UnitSteps simulate_unit_steps(const Schedule& schedule, const StageGraph& graph);
/// For a chain of stages.
UnitSteps simulate_unit_steps(const Schedule& schedule);

}  // namespace stagecraft
