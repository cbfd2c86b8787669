#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/recorded_run.h"

namespace stagecraft {

/// The data that a rank sends to the others about its last step.
struct GatheredRank {
  RankRecording recording = {};
  /// On the rank's own clock, in nanoseconds: the begin of its recording, and a moment at which all
  /// ranks left a barrier.
  int64_t zero = 0;
  int64_t met = 0;
  std::vector<StageState> stages = {};   ///< in the order of the rank's stages
  std::vector<StageMemory> memory = {};  ///< likewise; empty unless measured
};

c10::IValue to_value(const GatheredRank& rank);
GatheredRank gathered_rank_of(const c10::IValue& value);

/// Shifts all recordings to one clock, whose zero is the begin of the first recording. Clocks that
/// differ little at the barrier are taken as the same clock, that of one machine. Other clocks are
/// aligned at the barrier.
void align(std::span<GatheredRank> ranks);

}  // namespace stagecraft
