#include "cli/train/interrupt.h"

#include <atomic>
#include <csignal>
#include <initializer_list>

namespace stagecraft::cli {
namespace {

// Threads other than the one that handles the signal read it.
std::atomic<int> noted = 0;
static_assert(std::atomic<int>::is_always_lock_free, "a signal handler must not take a lock");

void note(int signal) {
  noted = signal;
}

}  // namespace

void note_interrupts() {
  struct sigaction action = {};
  action.sa_handler = note;
  sigemptyset(&action.sa_mask);
  action.sa_flags = static_cast<int>(SA_RESTART | SA_RESETHAND);
  for (const int signal : {SIGINT, SIGTERM}) sigaction(signal, &action, nullptr);
}

int noted_interrupt() {
  return noted;
}

}  // namespace stagecraft::cli
