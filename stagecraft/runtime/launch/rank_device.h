#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/runtime/launch/device_failure.h"
#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/launch/device_timeline.h"
#include "stagecraft/runtime/launch/pending_actions.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/step_plan.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft::detail {

/// Follows the device of a rank's stages while the rank's list is executed: when the device runs
/// the actions, what microbatches in flight hold there, and which action made the device fail. If
/// the stages are on the CPU or on several devices, only marks that were given are set
/// (set_timeline).
class RankDevice {
 public:
  /// `stages` must outlive the object.
  RankDevice(Rank rank, std::span<const Stage> stages);

  /// Begins a step of a list with `num_actions` actions.
  void start(const StepPlan& plan, std::size_t num_actions);
  /// DeviceError if the device failed in an earlier step.
  void check_usable() const;
  /// Restarts the peak of the device's memory.
  void reset_peak();

  /// Called around an action.
  void begin(Action action, std::size_t offset);
  void end(Action action, std::size_t offset);
  /// The host has the values of other ranks. The device has them when it reaches the mark.
  void ready(std::size_t offset) { timeline_.ready(offset); }
  /// The inputs of a forward, for the message of a device without memory.
  void note_inputs(StageId stage, const Arguments& inputs);
  /// Called between actions: notes the actions that the device has completed without an error.
  void note_complete();

  /// A failure of the device as OutOfMemoryError or DeviceError; any other `cause` unchanged.
  std::exception_ptr explain(const std::exception_ptr& cause);
  /// Forgets the times of a step that failed.
  void release() { timeline_.clear(); }
  /// Returns cached memory to the device, if the step failed for lack of memory.
  void abandon();

  /// Sets the marks of later steps. A timeline without marks selects those of the rank's device.
  void set_timeline(DeviceTimeline timeline) { given_ = std::move(timeline); }
  const DeviceTimeline& timeline() const { return timeline_; }
  /// Records that the last step is a replay of the capture that had these marks.
  void set_replayed(const DeviceTimeline& timeline);
  /// Adds the times and the memory of the device to the recording of the last step. Waits for the
  /// device. If there are none, logs the reason.
  void read_into(Recorder& recorder);

 private:
  InFlight& in_flight(StageId stage);

  const Rank rank_;
  const std::span<const Stage> stages_;
  const std::unique_ptr<DeviceProbe> probe_;  // null unless all stages are on one device
  std::shared_ptr<DeviceMarks> own_marks_;    // null without a device
  std::shared_ptr<PendingActions> pending_;   // null without a device
  DeviceTimeline given_;
  DeviceTimeline timeline_;  // of the last step
  bool is_read_ = true;      // the recorder has its times
  bool is_training_ = true;
  bool is_captured_ = false;
  std::vector<InFlight> in_flight_;  // by stage of the rank
  int64_t allocated_ = 0;            // on the device at the begin of the last F
  bool is_out_of_memory_ = false;    // the last step failed for lack of memory
  std::string failure_;              // why the device cannot be used any more
};

}  // namespace stagecraft::detail
