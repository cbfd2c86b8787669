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
  /// That long from now.
  static Deadline after(Clock::duration wait) { return Deadline(Clock::now() + wait); }

  Clock::time_point at() const { return at_; }
  bool has_passed() const { return Clock::now() >= at_; }

 private:
  Clock::time_point at_;
};

}  // namespace stagecraft
