#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {

/// The state of the communicator of one directed pair of ranks. Thread-safe.
///
///            connect                its first byte has passed
///   kIdle ------------> kConnecting -------------------------> kOpen
///                           |        a call of NCCL fails        |
///                           +------------> kFailed <-------------+
///
///   abort, close: every state becomes kIdle
///
/// The communicator may end while a thread creates or uses it. Later reports of that thread (kOpen,
/// kFailed) change nothing.
class NcclPairState {
 public:
  enum class State : uint8_t { kIdle, kConnecting, kOpen, kFailed };

  State state() const {
    const std::lock_guard lock(mutex_);
    return state_;
  }
  /// In kFailed: the message of the first call that failed. Otherwise empty.
  std::string failure() const {
    const std::lock_guard lock(mutex_);
    return failure_;
  }

  /// False, without a change, if the communicator has ended or failed before. `failure` is for
  /// kFailed. REQUIRES kIdle for kConnecting, and not kOpen for kOpen.
  bool move_to(State next, const std::string& failure = {}) {
    const std::lock_guard lock(mutex_);
    SC_ASSERT(next != State::kConnecting || state_ == State::kIdle);
    SC_ASSERT(next != State::kOpen || state_ != State::kOpen);
    const bool is_alive = state_ == State::kConnecting || state_ == State::kOpen;
    if ((next == State::kOpen || next == State::kFailed) && !is_alive) return false;
    const bool is_new = next != state_;
    state_ = next;
    failure_ = next == State::kFailed ? failure : std::string();
    return is_new;
  }

 private:
  mutable std::mutex mutex_;
  State state_ = State::kIdle;
  std::string failure_;
};

}  // namespace stagecraft::detail
