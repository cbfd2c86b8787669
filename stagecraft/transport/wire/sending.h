#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {

/// A value that is being sent in parts; its memory is in use until it is done. Thread-safe.
///
///               the last part is sent
///   kInFlight --------------------------> kSent
///               a part is lost
///             --------------------------> kLost
///
/// Both are final: parts that end after a loss change nothing.
class Sending {
 public:
  enum class State : uint8_t { kInFlight, kSent, kLost };

  /// REQUIRES parts >= 1.
  explicit Sending(std::size_t parts) : left_(parts) { SC_ASSERT(parts >= 1); }

  State state() const { return state_.load(std::memory_order_acquire); }
  bool is_done() const { return state() != State::kInFlight; }
  /// Whether it is done because the outbox was closed, or because sending failed.
  bool is_lost() const { return state() == State::kLost; }
  /// If it is lost because this rank's own device failed: the device's message. Otherwise empty.
  std::string failure() const {
    const std::lock_guard lock(failure_mutex_);
    return failure_;
  }
  /// Called before `finish_part` reports the loss.
  void set_failure(std::string failure) {
    const std::lock_guard lock(failure_mutex_);
    failure_ = std::move(failure);
  }

  /// A part has ended. True if threads that wait for the value must be woken.
  bool finish_part(bool is_sent) {
    // A loss is recorded before the part is counted, so that the last part cannot hide it.
    if (!is_sent) state_ = State::kLost;
    const bool is_last = left_.fetch_sub(1) == 1;
    State in_flight = State::kInFlight;
    if (is_last) state_.compare_exchange_strong(in_flight, State::kSent);
    return is_last || !is_sent;
  }

 private:
  std::atomic<std::size_t> left_;
  std::atomic<State> state_{State::kInFlight};
  mutable std::mutex failure_mutex_;
  std::string failure_;
};
using SendingPtr = std::shared_ptr<Sending>;

}  // namespace stagecraft::detail
