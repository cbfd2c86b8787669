#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

/// The properties of a stage that a report shows in addition to its actions.
struct StageState {
  int64_t parameters = 0;  ///< number of elements
  int64_t parameter_bytes = 0;
  int64_t gradient_bytes = 0;  ///< of the parameters that get a gradient
  std::string device = {};
};
StageState state_of(const Stage& stage);

/// The recording of a step with everything else that a report needs.
struct RecordedRun {
  Recording recording;
  std::string schedule_name;
  std::vector<StageState> stages = {};   ///< by stage
  std::vector<StageMemory> memory = {};  ///< by stage; empty if no step measured it
  LaunchCounts launches = {};            ///< of this rank, if ranks are processes
};

}  // namespace stagecraft
