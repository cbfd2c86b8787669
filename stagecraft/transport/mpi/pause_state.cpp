#include "stagecraft/transport/mpi/pause_state.h"

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {
namespace {

bool can_change(PauseState::State now, PauseState::State next) {
  using State = PauseState::State;
  switch (now) {
    case State::kPolling:
      return next == State::kShort || next == State::kLong;
    case State::kLong:
      return next == State::kWoken || next == State::kPolling;
    case State::kShort:
    case State::kWoken:
      return next == State::kPolling;
  }
  return false;
}

}  // namespace

void PauseState::move_to(State next) {
  SC_ASSERT(can_change(state(), next));
  state_ = next;
}

bool PauseState::wake() {
  if (!can_be_woken()) return false;
  move_to(State::kWoken);
  return true;
}

}  // namespace stagecraft::detail
