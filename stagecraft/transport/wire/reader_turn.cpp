#include "stagecraft/transport/wire/reader_turn.h"

#include <chrono>
#include <thread>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/deadline.h"

namespace stagecraft::detail {
namespace {

// How long the inbox's thread does not read after a rank's thread has read inline. Pipelines wait
// every few hundred microseconds, so within this time the rank most likely waits again.
constexpr auto kLeaveToInline = std::chrono::milliseconds(1);
// How long a rank's thread waits for the inbox's thread to release the turn. A longer wait costs
// more than the wake-up that reading inline saves.
constexpr auto kPatience = std::chrono::microseconds(50);

bool can_follow(ReaderTurn::State state, ReaderTurn::State next) {
  using State = ReaderTurn::State;
  switch (state) {
    case State::kFree:
      return next == State::kThread || next == State::kInline || next == State::kClosed;
    case State::kThread:
    case State::kInline:
      return next == State::kFree || next == State::kClosing;
    case State::kClosing:
      return next == State::kClosed;
    case State::kClosed:
      return false;
  }
  return false;
}

}  // namespace

void ReaderTurn::move_to(State next) {
  SC_ASSERT(can_follow(state_, next));
  state_ = next;
}

// A rank's thread that was refused the turn and still waits does not ask again. The lock is
// released meanwhile: this reference may have become the last one, and a value must not be
// destroyed under a lock.
bool ReaderTurn::is_refused_waiting(std::unique_lock<std::mutex>& lock) const {
  auto refused = refused_.lock();
  if (!refused) return false;
  lock.unlock();
  const bool is_waiting = !refused->is_done();
  refused.reset();
  lock.lock();
  return is_waiting;
}

bool ReaderTurn::take_thread() {
  std::unique_lock lock(mutex_);
  while (!is_closed()) {
    // First: the other members may change during this call.
    const bool is_refused = is_refused_waiting(lock);
    if (is_closed()) break;
    const bool is_left_to_inline = seen_inline_polls_ != inline_polls_ && !is_refused;
    if (state_ == State::kFree && !is_left_to_inline) break;
    // If no further call of take_inline comes within kLeaveToInline, the two numbers are equal and
    // this thread reads.
    seen_inline_polls_ = inline_polls_;
    changed_.wait_for(lock, kLeaveToInline);
  }
  if (is_closed()) return false;
  move_to(State::kThread);
  return true;
}

bool ReaderTurn::take_inline(const PendingPtr& awaited,
                             const std::function<void()>& ask_to_release) {
  std::unique_lock lock(mutex_);
  ++inline_polls_;
  if (state_ == State::kThread && ask_to_release) {
    lock.unlock();
    ask_to_release();
    lock.lock();
    const auto limit = Deadline::Clock::now() + kPatience;
    while (state_ == State::kThread && Deadline::Clock::now() < limit) {
      lock.unlock();
      // The inbox's thread may need this core to release the turn.
      std::this_thread::yield();
      lock.lock();
    }
  }
  const bool is_mine = state_ == State::kFree;
  refused_ = is_mine ? PendingPtr() : awaited;
  if (is_mine) move_to(State::kInline);
  return is_mine;
}

void ReaderTurn::release(bool is_thread_next) {
  const std::lock_guard lock(mutex_);
  move_to(state_ == State::kClosing ? State::kClosed : State::kFree);
  // The inbox's thread is not woken: it looks again after kLeaveToInline, and the rank's thread
  // most likely reads again before that.
  if (!is_thread_next && !is_closed()) return;
  seen_inline_polls_ = inline_polls_;
  changed_.notify_all();
}

void ReaderTurn::close() {
  const std::lock_guard lock(mutex_);
  if (!is_closed()) move_to(state_ == State::kFree ? State::kClosed : State::kClosing);
  changed_.notify_all();
}

ReaderTurn::State ReaderTurn::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace stagecraft::detail
