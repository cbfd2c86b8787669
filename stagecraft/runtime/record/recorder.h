#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/base/assert.h"
#include "stagecraft/runtime/record/recording.h"

namespace stagecraft {

/// Records what a rank's thread does while it executes its list. It is always on: a call is a clock
/// reading and a few stores, without a lock and, within a step, without an allocation (unless an
/// action has more than two waits).
///
///   recorder.start(list.size(), zero);
///   recorder.begin(i);
///   recorder.begin_wait(i);
///   ...                          // until the values are there
///   recorder.end_wait(sent);
///   ...
///   recorder.end(i);
///
/// All members are for the rank's own thread, except current(). Members with a `now` read the clock
/// if no time is passed. Times must not go back.
class Recorder {
 public:
  using Clock = std::chrono::steady_clock;
  using Time = Clock::time_point;

  Recorder() = default;
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  /// Begins a step of a list with `num_actions` actions. All ranks count times from `zero`. Forgets
  /// the step before, but keeps its memory.
  void start(std::size_t num_actions, Time zero);

  /// Called around an action; `offset` counts in the rank's list and is below num_actions. An
  /// overlap's parts go between its own begin and end. An action that is begun again before it
  /// ended counts from the first begin to the last end.
  void begin(std::size_t offset) { begin(offset, Clock::now()); }
  void begin(std::size_t offset, Time now);
  void end(std::size_t offset) { end(offset, Clock::now()); }
  void end(std::size_t offset, Time now);

  /// Called around a wait for a transfer, inside the action at `offset`. `sent`: when the sender
  /// sent it, on the clock of this rank.
  void begin_wait(std::size_t offset) { begin_wait(offset, Clock::now()); }
  void begin_wait(std::size_t offset, Time now);
  void begin_wait(std::size_t offset, RankRecording::Wait::For what) {
    begin_wait(offset, what, Clock::now());
  }
  void begin_wait(std::size_t offset, RankRecording::Wait::For what, Time now) {
    begin_wait(offset, now);
    recording_.waits.back().what = what;
  }
  void end_wait(Time sent) { end_wait(sent, Clock::now()); }
  void end_wait(Time sent, Time now);

  /// Bytes that the current action sent to a different rank.
  void add_sent(int64_t bytes);
  void add_received(int64_t bytes) { recording_.bytes_received += bytes; }
  void set_peak_memory(int64_t bytes) { recording_.peak_memory = bytes; }

  /// Begins to record memory, after start(). `held_before`: bytes that the rank holds already.
  void start_memory(int64_t held_before);
  /// The memory of the action at `offset`: its peak and its end. REQUIRES start_memory.
  void set_held(std::size_t offset, RankRecording::Held held) {
    SC_ASSERT(offset < recording_.held.size());
    recording_.held[offset] = held;
  }

  /// The times and the memory of the device, which are known after the step.
  void set_device(std::vector<RankRecording::DeviceTimes> times) {
    recording_.device = std::move(times);
  }
  void set_device_memory(RankRecording::DeviceMemory memory) { recording_.device_memory = memory; }
  /// Sets the recording of a step that was launched at `zero` as one graph. `recording` is that of
  /// the capture; its times of the host are dropped.
  void set_replayed(RankRecording recording, Time zero);

  /// Ends the current action and wait, for a step that failed.
  void stop() { stop(Clock::now()); }
  void stop(Time now);

  /// The current action, for an overlap the current part; nothing between actions. Thread-safe.
  std::optional<std::size_t> current() const {
    const std::size_t offset = current_.load(std::memory_order_relaxed);
    return offset == kNone ? std::nullopt : std::optional(offset);
  }

  /// The `zero` of start().
  Time zero() const { return zero_; }
  /// The recording since start().
  const RankRecording& view() const { return recording_; }
  /// The same, moved out; the next start() allocates anew.
  RankRecording take();

 private:
  static constexpr std::size_t kNone = SIZE_MAX;

  int64_t since_zero(Time time) const {
    return std::chrono::duration_cast<std::chrono::nanoseconds>(time - zero_).count();
  }
  void set_current(std::size_t offset) { current_.store(offset, std::memory_order_relaxed); }

  RankRecording recording_;
  Time zero_;
  std::size_t around_ = kNone;  // the overlap of the current part
  bool is_waiting_ = false;
  std::atomic<std::size_t> current_ = kNone;
};

}  // namespace stagecraft
