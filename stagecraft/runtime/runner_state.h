#pragma once

#include <cstdint>

#include "stagecraft/base/assert.h"

namespace stagecraft {

/// The state of a runner and its step.
///
///   kNew, kReady ---> kPreparing ---> kAgreeing ---> kExecuting ---> kEnding ---> kReady
///                         |               |              |              |
///                         +---------------+--------------+--------------+--> kFailed
///
///   recover: kNew, kReady and kFailed become kNew
///
/// In kNew, before the first step and after a recovery, the next step compares the pipelines of the
/// ranks: some ranks may not have completed an earlier comparison.
class RunnerState {
 public:
  enum class State : uint8_t {
    kNew,
    kReady,      ///< the ranks have compared their pipelines
    kPreparing,  ///< the rank makes its batch
    kAgreeing,   ///< all ranks meet at the beginning of the step
    kExecuting,  ///< the rank executes its actions
    kEnding,     ///< all ranks meet at the end of the step
    kFailed,     ///< the world must recover before the next step
  };

  State state() const { return state_; }
  bool is_new() const { return state_ == State::kNew; }
  bool is_failed() const { return state_ == State::kFailed; }
  bool is_in_step() const { return state_ >= State::kPreparing && state_ <= State::kEnding; }
  /// When all ranks meet, for messages. Null in other states.
  const char* meeting() const {
    if (state_ == State::kAgreeing) return "at the beginning of the step";
    return state_ == State::kEnding ? "at the end of the step" : nullptr;
  }

  /// REQUIRES a transition of the drawing.
  void move_to(State next) {
    SC_ASSERT(can_follow(next));
    state_ = next;
  }

 private:
  bool can_follow(State next) const {
    switch (next) {
      case State::kNew:
        return !is_in_step();
      case State::kReady:
        return state_ == State::kEnding;
      case State::kPreparing:
        return state_ == State::kNew || state_ == State::kReady;
      case State::kAgreeing:
        return state_ == State::kPreparing;
      case State::kExecuting:
        return state_ == State::kAgreeing;
      case State::kEnding:
        return state_ == State::kExecuting;
      case State::kFailed:
        return is_in_step();
    }
    return false;
  }

  State state_ = State::kNew;
};

}  // namespace stagecraft
