#pragma once

#include <chrono>
#include <functional>

#include "stagecraft/base/error.h"

namespace stagecraft {

/// The program was told to stop, by a signal for instance, or a stage ended it. The step fails on
/// all ranks. On the rank itself this error is thrown as it is, not as StageError.
class InterruptedError : public Error {
 public:
  using Error::Error;
};

/// While it lives, a function is called on this thread every 50 ms of each wait for other ranks,
/// and between actions. It is for programs that must see something meanwhile, such as a signal:
///
///   const WaitTick tick([] { if (is_stopped) throw InterruptedError("interrupted"); });
///   runner.step(...);
///
/// What the function throws ends the wait and fails the step. The function is called without any
/// lock of Stagecraft. Scopes nest; the innermost counts.
class WaitTick {
 public:
  static constexpr std::chrono::milliseconds kPeriod{50};

  explicit WaitTick(std::function<void()> on_tick);
  ~WaitTick();
  WaitTick(const WaitTick&) = delete;
  WaitTick& operator=(const WaitTick&) = delete;

  /// Whether this thread has a function.
  static bool is_set() { return current_ != nullptr; }
  /// Calls it. REQUIRES that there is one.
  static void call();
  /// Calls it if there is one and its period is over.
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
