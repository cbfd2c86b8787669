#include "stagecraft/transport/wire/watchdog.h"

#include <exception>
#include <string>
#include <utility>

#include "stagecraft/base/log.h"

namespace stagecraft::detail {

Watchdog::Watchdog(std::chrono::nanoseconds period, std::function<void()> on_tick)
    : thread_([this, period, on_tick = std::move(on_tick)] {
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, period, [&] { return is_over_; })) {
          lock.unlock();
          try {
            on_tick();
          } catch (const std::exception& error) {
            log(LogLevel::kError, std::string("watchdog: ") + error.what());
          }
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
