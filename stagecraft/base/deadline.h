#pragma once

#include <chrono>

namespace stagecraft {

/// When a wait gives up. Every wait in Stagecraft has one.
///
///   transport.barrier(Deadline::after(std::chrono::seconds(30)));
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point at) : at_(at) {}
  /// That long from now; as good as never where that is further than the clock goes.
  static Deadline after(Clock::duration wait) {
    const Clock::time_point now = Clock::now();
    return Deadline(wait > Clock::time_point::max() - now ? Clock::time_point::max() : now + wait);
  }

  Clock::time_point at() const { return at_; }
  bool has_passed() const { return Clock::now() >= at_; }

 private:
  Clock::time_point at_;
};

}  // namespace stagecraft
