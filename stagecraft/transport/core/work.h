#pragma once

#include <memory>

namespace stagecraft::detail {

/// A send or receive in progress, of a communication library.
class Work {
 public:
  Work() = default;
  virtual ~Work() = default;
  Work(const Work&) = delete;
  Work& operator=(const Work&) = delete;

  /// Waits until it is done (true) or interrupted (false). Throws when the connection is lost, but
  /// a library may miss that for a message that was half-way through. One thread at a time may
  /// wait.
  virtual bool wait() = 0;
  /// Like `wait`, for a thread that has nothing else to do and must not lose time. A library that
  /// must be polled may be polled without pauses.
  virtual bool wait_busily() { return wait(); }
  /// Whether it is known to be done, without a wait.
  virtual bool is_done() const { return false; }
  /// Ends the current wait; without one, the next wait. The send or receive itself goes on.
  virtual void interrupt() = 0;
};
using WorkPtr = std::shared_ptr<Work>;

}  // namespace stagecraft::detail
