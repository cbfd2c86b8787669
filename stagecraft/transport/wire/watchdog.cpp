#include "stagecraft/transport/wire/watchdog.h"

#include <utility>

namespace stagecraft::detail {

Watchdog::Watchdog(std::chrono::nanoseconds period, std::function<void()> on_tick)
    : thread_([this, period, on_tick = std::move(on_tick)] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, period, [&] { return is_over_; })) {
          lock.unlock();
          on_tick();
          lock.lock();
        }
      }) {}

Watchdog::~Watchdog() {
  {
    const std::lock_guard lock(mutex_);
    is_over_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

}  // namespace stagecraft::detail
