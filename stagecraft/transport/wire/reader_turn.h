#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>

#include "stagecraft/transport/core/pending.h"

namespace stagecraft::detail {

/// Decides which thread reads the stream of an inbox: the inbox's own thread, or a rank's thread
/// that waits for a value and reads inline.
///
///            take_thread             release
///   kFree ----------------> kThread --------> kFree
///     |                        | close
///     | close                  v       release
///     |                     kClosing ---------> kClosed
///     v                        ^
///   kClosed (final)            | close
///            take_inline       |     release
///   kFree ----------------> kInline --------> kFree
///
/// After a rank's thread has read inline, the inbox's thread leaves the turn to it for
/// kLeaveToInline: waking a thread that then wakes a second one takes tens of microseconds, and a
/// rank that has waited will soon wait again. Thread-safe.
class ReaderTurn {
 public:
  enum class State : uint8_t { kFree, kThread, kInline, kClosing, kClosed };

  /// For the inbox's thread: waits for the turn. False if it is closed.
  bool take_thread();
  /// For a rank's thread that waits for `awaited`. True if it has the turn, false if the inbox's
  /// thread keeps it or the turn is closed. `ask_to_release` is called if the inbox's thread has
  /// the turn, and makes that thread release it soon. It may be empty: then the inbox's thread
  /// keeps its turn.
  bool take_inline(const PendingPtr& awaited, const std::function<void()>& ask_to_release);
  /// Ends a turn. With `is_thread_next`, the inbox's thread takes the next turn at once.
  void release(bool is_thread_next = false);
  void close();

  State state() const;

 private:
  /// Whether a rank's thread that was refused the turn still waits. Releases the lock meanwhile.
  bool is_refused_waiting(std::unique_lock<std::mutex>& lock) const;
  bool is_closed() const { return state_ == State::kClosing || state_ == State::kClosed; }
  void move_to(State next);

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  State state_ = State::kFree;
  uint64_t inline_polls_ = 0;       ///< number of calls of take_inline
  uint64_t seen_inline_polls_ = 0;  ///< those that the inbox's thread has waited for
  /// What the rank's thread awaits that was last refused the turn.
  std::weak_ptr<Pending> refused_;
};

}  // namespace stagecraft::detail
