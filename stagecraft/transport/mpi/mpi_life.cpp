#include "stagecraft/transport/mpi/mpi_life.h"

#include <array>

#include "stagecraft/base/assert.h"

namespace stagecraft::detail {
namespace {

bool can_follow(MpiLife::State now, MpiLife::State next) {
  using State = MpiLife::State;
  switch (now) {
    case State::kStarting:
      return next == State::kRunning || next == State::kUnusable;
    case State::kRunning:
      return next == State::kMeeting || next == State::kFinalizing || next == State::kLeft;
    case State::kMeeting:
      return next == State::kFinalizing || next == State::kStranded;
    case State::kFinalizing:
      return next == State::kEnded;
    case State::kUnusable:
    case State::kEnded:
    case State::kStranded:
    case State::kLeft:
      break;
  }
  return false;
}

}  // namespace

void MpiLife::move_to(State next) {
  SC_ASSERT(can_follow(state(), next));
  state_.store(next, std::memory_order_release);
}

void MpiLife::start() {
  std::array<char, kMpiProblemBytes> problem{};
  if (plugin_.start(&facts_, problem.data()) != 0) problem_ = problem.data();
  const bool is_usable = problem_.empty() && facts_.is_single_threaded == 0;
  move_to(is_usable ? State::kRunning : State::kUnusable);
}

void MpiLife::finish(bool can_meet) {
  if (can_meet) {
    move_to(State::kMeeting);
    // Over UCX's TCP, MPICH hangs in MPI_Finalize if a rank has completed it before a different
    // rank begins. The barrier also shows this rank when all have come.
    if (plugin_.wait_for_all() != 0) return move_to(State::kStranded);
  }
  move_to(State::kFinalizing);
  plugin_.finish();
  move_to(State::kEnded);
}

}  // namespace stagecraft::detail
