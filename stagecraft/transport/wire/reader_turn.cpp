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

}  // namespace

bool ReaderTurn::is_left_to_inline() const {
  // A rank's thread that still waits for what it was refused for does not come again.
  const auto refused = refused_.lock();
  return seen_inline_polls_ != inline_polls_ && (!refused || refused->is_done());
}

bool ReaderTurn::take_thread() {
  std::unique_lock lock(mutex_);
  while (!is_closing_ && (state_ != State::kFree || is_left_to_inline())) {
    seen_inline_polls_ = inline_polls_;
    changed_.wait_for(lock, kLeaveToInline);
  }
  if (is_closing_) return false;
  state_ = State::kThread;
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
      std::this_thread::yield();
      lock.lock();
    }
  }
  const bool is_mine = state_ == State::kFree;
  refused_ = is_mine ? PendingPtr() : awaited;
  if (is_mine) state_ = State::kInline;
  return is_mine;
}

void ReaderTurn::release(bool is_thread_next) {
  const std::lock_guard lock(mutex_);
  SC_ASSERT(state_ == State::kThread || state_ == State::kInline);
  state_ = is_closing_ ? State::kClosed : State::kFree;
  if (!is_thread_next && !is_closing_) return;
  seen_inline_polls_ = inline_polls_;
  changed_.notify_all();
}

void ReaderTurn::close() {
  const std::lock_guard lock(mutex_);
  is_closing_ = true;
  if (state_ == State::kFree) state_ = State::kClosed;
  changed_.notify_all();
}

ReaderTurn::State ReaderTurn::state() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

}  // namespace stagecraft::detail
