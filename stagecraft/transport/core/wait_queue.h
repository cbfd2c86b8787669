#pragma once

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/wait_tick.h"

namespace stagecraft::detail {

/// Tells the processor that this thread spins.
inline void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long a thread spins without yielding. Afterwards it yields between two checks, for threads
/// that share its core.
constexpr auto kAlone = std::chrono::microseconds(20);

/// Spins until `done`, for at most `limit` and not beyond the deadline. Returns the last result of
/// `done`.
template <typename Done>
bool spin_until(const Done& done, Deadline::Clock::duration limit, Deadline deadline) {
  if (done()) return true;
  if (limit <= Deadline::Clock::duration::zero()) return false;
  const auto begin = Deadline::Clock::now();
  const auto end = deadline.at() - begin < limit ? deadline.at() : begin + limit;
  for (auto now = begin; now < end; now = Deadline::Clock::now()) {
    if (now - begin > kAlone) std::this_thread::yield();
    for (int i = 0; i < 16; ++i) {
      pause_processor();
      if (done()) return true;
    }
  }
  return false;
}

/// A mutex with a queue of waiting threads. Conditions change under the mutex, so no change is
/// missed. A change without waiting threads makes no system call.
class WaitQueue {
 public:
  std::unique_lock<std::mutex> lock() {
    // A thread that sees a flag set under the mutex arrives here just before the mutex is released.
    // Sleeping until then would cost a hundred times as much as spinning.
    for (int i = 0; i < 32; ++i) {
      if (mutex_.try_lock()) return std::unique_lock(mutex_, std::adopt_lock);
      pause_processor();
    }
    return std::unique_lock(mutex_);
  }

  /// Sleeps until `done` or the deadline; returns the last result of `done`. `lock` is held during
  /// calls of `done` and afterwards, also when a tick (base/wait_tick.h) throws.
  template <typename Done>
  bool wait(std::unique_lock<std::mutex>& lock, Deadline deadline, const Done& done) {
    ++sleepers_;
    bool is_done = false;
    if (!WaitTick::is_set()) {
      is_done = changed_.wait_until(lock, deadline.at(), done);
    } else {
      is_done = wait_with_ticks(lock, deadline, done);
    }
    --sleepers_;
    return is_done;
  }

  /// Releases the lock and wakes all waiting threads.
  void unlock_and_wake(std::unique_lock<std::mutex>& lock) {
    const bool wake = sleepers_ > 0;
    lock.unlock();
    if (wake) changed_.notify_all();
  }

 private:
  template <typename Done>
  bool wait_with_ticks(std::unique_lock<std::mutex>& lock, Deadline deadline, const Done& done) {
    for (;;) {
      const auto next = Deadline::Clock::now() + WaitTick::kPeriod;
      if (changed_.wait_until(lock, std::min(deadline.at(), next), done)) return true;
      if (deadline.has_passed()) return false;
      lock.unlock();
      try {
        WaitTick::call();
      } catch (...) {
        lock.lock();
        --sleepers_;
        throw;
      }
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  int sleepers_ = 0;
};

}  // namespace stagecraft::detail
