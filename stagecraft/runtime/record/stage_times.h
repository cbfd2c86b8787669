#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/runtime/record/recording.h"

namespace stagecraft {

/// The times of one stage in a step.
struct StageTimes {
  /// The time of each of its actions, waiting excluded, in microseconds and in the order of its
  /// rank's list. Actions that did not run are left out.
  std::vector<double> forward = {};
  std::vector<double> backward_input = {};
  std::vector<double> backward_weight = {};
  std::vector<double> backward = {};
  int64_t activations_sent = 0;  ///< bytes
  int64_t gradients_sent = 0;
};

/// By stage. ArgumentError unless the recording has the ranks and actions of its schedule.
std::vector<StageTimes> stage_times(const Recording& recording);

}  // namespace stagecraft
