#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {

/// A recording in which everything has ended: open actions and waits end at the makespan. Ranks
/// that have times of a device are in device time (device_time.h).
struct ClosedRecording {
  std::vector<RankRecording> ranks;
  int64_t makespan = 0;  ///< the last time of any rank
};
/// ArgumentError unless the recording has the ranks and actions of its schedule.
ClosedRecording close(const Recording& recording);

/// How a rank's time until the makespan divides, in nanoseconds; the five add up to it.
struct TimeUse {
  int64_t compute = 0;  ///< in F, I, W and B, waiting excluded
  int64_t bubble = 0;   ///< waiting for values that were not sent yet, and after its last action
  int64_t exposed = 0;  ///< waiting for values that were already sent
  int64_t weights = 0;  ///< waiting for the weights of a sharded stage
  int64_t other = 0;    ///< the rest: sends, bookkeeping

  /// The four parts of the bubble: waiting before the first compute, later waiting for activations
  /// and for gradients that were not sent yet, and the time after the last action.
  int64_t start_up = 0;
  int64_t activations = 0;
  int64_t gradients = 0;
  int64_t run_out = 0;
  int64_t exposed_gradients = 0;  ///< of `exposed`; the rest were activations
};
/// `rank` is one of a ClosedRecording, `list` its actions.
TimeUse use_of_time(std::span<const Action> list, const RankRecording& rank, int64_t makespan);

constexpr double microseconds(int64_t nanoseconds) {
  return static_cast<double>(nanoseconds) / 1000;
}

}  // namespace stagecraft
