#pragma once

#include <csignal>
#include <ctime>

#include <pthread.h>

namespace stagecraft::detail {

/// While it lives, SIGPIPE is blocked on this thread and on threads that it starts. Writing to a
/// connection that the peer has closed raises SIGPIPE, which would end the process. Neither gloo
/// nor c10d's store prevents that.
class SigpipeGuard {
 public:
  SigpipeGuard() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~SigpipeGuard() {
    if (sigismember(&before_, SIGPIPE) == 1) return;
    const timespec at_once{};
    while (sigtimedwait(&pipe_, nullptr, &at_once) == SIGPIPE) {
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }
  SigpipeGuard(const SigpipeGuard&) = delete;
  SigpipeGuard& operator=(const SigpipeGuard&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

}  // namespace stagecraft::detail
