#pragma once

#include <cstdint>

#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/stage/memory_meter.h"

namespace stagecraft {

/// One step, the same for all its ranks.
struct StepPlan {
  const Schedule* schedule = nullptr;
  const Microbatches* batch = nullptr;
  const StepOptions* options = nullptr;
  bool is_training = true;
  uint64_t step = 0;  ///< unique for each step
  /// For random operators: the seed, and the number of steps that used it before.
  uint64_t seed = 0;
  uint64_t draw = 0;
  Recorder::Time zero = {};
  bool is_captured = false;      ///< the device notes the work instead of executing it
  MemoryMeter* meter = nullptr;  ///< an account for each rank, and one for values in transfer
};

}  // namespace stagecraft
