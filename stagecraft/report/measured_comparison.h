#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/sim/compare_schedules.h"

namespace stagecraft {

/// Estimates of other schedules for a recorded step.
struct MeasuredComparison {
  ScheduleComparison comparison = {};
  std::vector<std::string> assumptions =
      {};  ///< one sentence each; if nothing was compared, the reason
};

/// Estimates every schedule for the ranks and microbatches of the recorded step, with the mean
/// times of its stages. The step's own schedule is among them, as `schedule_name`. `memory`: by
/// stage, or empty; then the peaks are 0. A step that did not complete or had no backward is not
/// compared.
MeasuredComparison compare_measured(const Recording& recording, const std::string& schedule_name,
                                    std::span<const StageMemory> memory);

}  // namespace stagecraft
