#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/schedule/action.h"

namespace stagecraft {

/// The ranks of a recording with the times of their devices instead of those of the host. A rank
/// without times of a device is unchanged.
///
///   action   from DeviceTimes::begin to end
///   wait     from DeviceTimes::begin to ready; the value was sent when the device of the sending
///            rank had executed the SEND
///
/// In a step that was one launch the ranks take turns on one device. There a rank waits from the
/// end of its last action to the begin of its next compute, for values that were not sent yet.
std::vector<RankRecording> in_device_time(const Recording& recording);

/// The time of the host that launched the actions of a rank, compared with the device, in
/// nanoseconds.
struct HostTime {
  int64_t compute = 0;  ///< the host was in F, I, W and B, waiting excluded
  /// Between actions the device had no work, because the host had not launched the next action.
  int64_t late = 0;
  /// Device time of the F, I, W and B that the device completed as soon as the host had launched
  /// all of it, so that launching took as long as computing.
  int64_t launch_bound = 0;
};
/// `rank` is one of a Recording, not of in_device_time. REQUIRES times of a device.
HostTime host_time_of(std::span<const Action> list, const RankRecording& rank);

}  // namespace stagecraft
