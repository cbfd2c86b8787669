#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <mutex>
#include <thread>

namespace stagecraft::detail {

/// Calls a function periodically on its own thread, until it is destroyed. Exceptions of the
/// function are logged.
class Watchdog {
 public:
  Watchdog(std::chrono::nanoseconds period, std::function<void()> on_tick);
  ~Watchdog();
  Watchdog(const Watchdog&) = delete;
  Watchdog& operator=(const Watchdog&) = delete;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool is_over_ = false;
  std::thread thread_;
};

}  // namespace stagecraft::detail
