#pragma once

#include <chrono>

namespace stagecraft {

/// The moment at which a wait gives up. Every wait in Stagecraft has a deadline.
///
///   transport.barrier(Deadline::after(std::chrono::seconds(30)));
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  explicit Deadline(Clock::time_point at) : at_(at) {}
  /// The moment `wait` from now, but at most the largest time that the clock can represent.
  static Deadline after(std::chrono::nanoseconds wait) {
    const Clock::time_point now = Clock::now();
    if (wait > Clock::time_point::max() - now) return Deadline(Clock::time_point::max());
    return Deadline(now + std::chrono::duration_cast<Clock::duration>(wait));
  }

  Clock::time_point at() const { return at_; }
  bool has_passed() const { return Clock::now() >= at_; }

 private:
  Clock::time_point at_;
};

}  // namespace stagecraft
