#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/record/recorder.h"

namespace stagecraft::detail {

/// The marks around the actions of one rank, and their times after the step. Without marks, calls
/// do nothing.
class DeviceTimeline {
 public:
  enum class Kind : uint8_t {
    kEach,  ///< marks at the begin and the end of every action
    /// Actions follow each other on one stream, also those of other ranks that share the marks.
    /// Compute actions are marked at their end; other actions take no time.
    kChain,
  };

  DeviceTimeline() = default;
  explicit DeviceTimeline(std::shared_ptr<DeviceMarks> marks, Kind kind = Kind::kEach)
      : marks_(std::move(marks)), kind_(kind) {}

  bool has_marks() const { return marks_ != nullptr; }
  /// Begins a step. Marks of a chain are kept, because other ranks have set some of them.
  void start(std::size_t num_actions);
  /// Forgets the step.
  void clear() { places_.clear(); }

  void begin(std::size_t offset);
  /// The values of other ranks have arrived.
  void ready(std::size_t offset);
  void end(std::size_t offset, bool is_compute);

  /// How many of the actions that have ended, oldest first, the device is known to have completed.
  /// Does not wait. Throws what the device reports.
  std::size_t num_complete();

  /// Waits for the device. Returns the times by offset, in nanoseconds since `zero`; empty if there
  /// are no marks.
  std::vector<RankRecording::DeviceTimes> read(Recorder::Time zero) const;

 private:
  static constexpr std::size_t kNone = SIZE_MAX;
  struct Places {  // numbers of marks
    std::size_t begin = kNone;
    std::size_t ready = kNone;
    std::size_t end = kNone;
  };

  std::size_t last();

  std::shared_ptr<DeviceMarks> marks_;
  Kind kind_ = Kind::kEach;
  std::vector<Places> places_;     // by offset
  std::vector<std::size_t> ends_;  // marks of actions that have ended, oldest first
  std::size_t complete_ = 0;       // of ends_, those that the device has reached
};

}  // namespace stagecraft::detail
