#pragma once

#include <span>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/sim/compare_schedules.h"

namespace stagecraft {

struct MeasuredComparison {
  ScheduleComparison comparison = {};
  std::vector<std::string> assumptions = {};  ///< a sentence each; why there is nothing, if so
};

/// What every schedule would take for the recorded step's ranks and microbatches, with the means of
/// what its stages took. The step's own schedule is among them, under `schedule_name`. `memory`:
/// what the stages did, or nothing, then no peaks (0). Nothing is compared for a step that did not
/// complete or had no backward.
MeasuredComparison compare_measured(const Recording& recording, const std::string& schedule_name,
                                    std::span<const StageMemory> memory);

}  // namespace stagecraft
