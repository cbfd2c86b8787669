#pragma once

#include <atomic>
#include <cstdint>

namespace stagecraft::detail {

/// The pause of the progress thread between two polls.
///
///             begin, long            wake
///   kPolling ------------> kLong ----------> kWoken
///    |  ^  ^                 | end              | end
///    |  |  +-----------------+------------------+
///    |  | end
///    v  |       begin, short
///    kShort
///
/// A short pause is over before a thread that waits for the mutex could end it. Changes are made
/// under the mutex of the progress thread, so that it misses no wake. Every thread may read the
/// state.
class PauseState {
 public:
  enum class State : uint8_t {
    kPolling,  ///< no pause
    kShort,    ///< a pause that takes its time
    kLong,     ///< a pause that `wake` ends
    kWoken,    ///< a long pause that is to end now
  };

  /// REQUIRES kPolling.
  void begin(bool is_long) { move_to(is_long ? State::kLong : State::kShort); }
  /// Ends a long pause. Whether there was one that had not been ended.
  bool wake();
  /// REQUIRES a pause.
  void end() { move_to(State::kPolling); }

  State state() const { return state_; }
  bool can_be_woken() const { return state() == State::kLong; }
  bool is_woken() const { return state() == State::kWoken; }

 private:
  void move_to(State next);

  std::atomic<State> state_{State::kPolling};
};

}  // namespace stagecraft::detail
