#include "stagecraft/transport/wire/watchdog.h"

#include <exception>
#include <string>
#include <utility>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/thread_name.h"

namespace stagecraft::detail {

Watchdog::Watchdog(std::chrono::nanoseconds period, std::function<void()> on_tick)
    : thread_([this, period, on_tick = std::move(on_tick)] {
        name_thread("sc watchdog");
        std::unique_lock lock(mutex_);
        while (!changed_.wait_for(lock, period, [&] { return is_over_; })) {
          // on_tick may wait for a peer. The destructor must be able to note the end meanwhile.
          lock.unlock();
          try {
            on_tick();
          } catch (...) {
            log(LogLevel::kError, "watchdog: " + describe(std::current_exception()));
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
