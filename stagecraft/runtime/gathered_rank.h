#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/recorded_run.h"

namespace stagecraft {

/// What a rank tells the others of its last step.
struct GatheredRank {
  RankRecording recording = {};
  /// By the rank's own clock, in nanoseconds: when its recording begins, and when all ranks met.
  int64_t zero = 0;
  int64_t met = 0;
  std::vector<StageState> stages = {};   ///< in the order of the rank's stages
  std::vector<StageMemory> memory = {};  ///< likewise; empty unless measured
};

c10::IValue to_value(const GatheredRank& rank);
GatheredRank gathered_rank_of(const c10::IValue& value);

/// Puts all recordings onto one clock, which begins where the first of them does. Ranks whose
/// clocks agree when they meet share one, as on one machine; others are aligned where they met.
void align(std::span<GatheredRank> ranks);

}  // namespace stagecraft
