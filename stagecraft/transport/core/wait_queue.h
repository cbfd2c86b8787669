#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <thread>

#include "stagecraft/base/deadline.h"

namespace stagecraft::detail {

/// Tells the processor that this thread looks at a flag in a loop.
inline void pause_processor() {
#if defined(__x86_64__) || defined(__i386__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

/// How long a thread that looks keeps the processor to itself; then others may have it in between.
constexpr auto kAlone = std::chrono::microseconds(20);

/// Looks at `done` for `limit`, and not beyond the deadline. What `done` said last.
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

/// A mutex with threads asleep on it. What they wait for changes under the mutex, so no change is
/// missed; and a change that nobody sleeps for costs no call of the system.
class WaitQueue {
 public:
  std::unique_lock<std::mutex> lock() {
    // Who sees a flag that was set under the mutex comes here a moment before it is released: to
    // sleep for that would cost a hundred times as much.
    for (int i = 0; i < 32; ++i) {
      if (mutex_.try_lock()) return std::unique_lock(mutex_, std::adopt_lock);
      pause_processor();
    }
    return std::unique_lock(mutex_);
  }

  /// Sleeps until `done` or the deadline; what `done` said last. `lock` is held when `done` is
  /// asked and afterwards.
  template <typename Done>
  bool wait(std::unique_lock<std::mutex>& lock, Deadline deadline, const Done& done) {
    ++sleepers_;
    const bool is_done = changed_.wait_until(lock, deadline.at(), done);
    --sleepers_;
    return is_done;
  }

  /// Releases the lock and wakes whoever sleeps.
  void unlock_and_wake(std::unique_lock<std::mutex>& lock) {
    const bool wake = sleepers_ > 0;
    lock.unlock();
    if (wake) changed_.notify_all();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  int sleepers_ = 0;
};

}  // namespace stagecraft::detail
