#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

/// What a report tells of a stage beside its actions.
struct StageState {
  int64_t parameters = 0;  ///< how many numbers
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;  ///< of those parameters that get one
  std::string device = {};
};
StageState state_of(const Stage& stage);

/// A step with what its recording does not know: all that a report is made of.
struct RecordedRun {
  Recording recording;
  std::string schedule_name;
  std::vector<StageState> stages = {};   ///< by stage
  std::vector<StageMemory> memory = {};  ///< by stage; empty unless measured
};

}  // namespace stagecraft
