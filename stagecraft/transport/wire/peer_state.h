#pragma once

#include <atomic>
#include <cstdint>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {

/// The end of the error message for a peer whose connection is closed or whose process has ended.
inline constexpr const char* kPeerEnded = "its process has ended or cannot be reached";

/// The life of a peer, as this rank sees it. Thread-safe.
///
///             the peer answers this rank's goodbye
///   kJoined ----------------------------------------> kReleased
///
///   kJoined, kReleased -- the stream ends after the peer's goodbye --> kClosed
///   kJoined, kReleased -- the connection fails ----------------------> kLost
///
/// kClosed and kLost are final: the one that is reached first remains. (WorldState::has_left says
/// whether the peer has said goodbye.)
class PeerState {
 public:
  enum class State : uint8_t { kJoined, kReleased, kClosed, kLost };

  State state() const { return state_.load(std::memory_order_acquire); }
  bool is_lost() const { return state() == State::kLost; }
  /// Whether no more frames come from the peer.
  bool has_ended() const { return is_final(state()); }
  /// Whether this rank may close the connection: the peer has read everything, or cannot.
  bool may_close() const { return state() != State::kJoined; }

  /// Returns false, without a change, if the peer was in this state or in a final one. REQUIRES
  /// next != kJoined.
  bool move_to(State next) {
    SC_ASSERT(next != State::kJoined);
    State known = state();
    while (!is_final(known) && known != next) {
      if (state_.compare_exchange_weak(known, next)) return true;
    }
    return false;
  }

 private:
  static bool is_final(State state) { return state == State::kClosed || state == State::kLost; }

  std::atomic<State> state_{State::kJoined};
};

}  // namespace stagecraft::detail
