#pragma once

#include <chrono>
#include <functional>

#include "stagecraft/base/error.h"

namespace stagecraft {

/// The program was told to stop, for instance by a signal, or a stage ended it. The step fails on
/// all ranks. The interrupted rank throws this error itself, not a StageError.
class InterruptedError : public Error {
 public:
  using Error::Error;
};

/// While it lives, a function is called on the thread that created it: every 50 ms while the thread
/// waits for other ranks, and between actions. For programs that must notice events in the
/// meantime, such as a signal:
///
///   const WaitTick tick([] { if (is_stopped) throw InterruptedError("interrupted"); });
///   runner.step(...);
///
/// An exception of the function ends the wait and fails the step. No lock of Stagecraft is held
/// during the call. If several ticks exist on a thread, only the innermost one is called.
class WaitTick {
 public:
  static constexpr std::chrono::milliseconds kPeriod{50};

  explicit WaitTick(std::function<void()> on_tick);
  ~WaitTick();
  WaitTick(const WaitTick&) = delete;
  WaitTick& operator=(const WaitTick&) = delete;

  /// Whether this thread has a tick.
  static bool is_set() { return current_ != nullptr; }
  /// Calls the function of this thread's tick. REQUIRES is_set().
  static void call();
  /// Calls the function of this thread's tick, if there is one and its period has passed.
  static void call_if_due() {
    if (is_set()) current_->look();
  }

 private:
  void look();

  static thread_local WaitTick* current_;
  const std::function<void()> on_tick_;
  std::chrono::steady_clock::time_point last_;
  WaitTick* const outer_;
};

}  // namespace stagecraft
