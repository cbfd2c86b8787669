#pragma once

#include <functional>

namespace stagecraft::bench {

/// What a piece of work took.
struct Usage {
  double result = 0;         ///< what the work returned
  double seconds = 0;        ///< on one core: user and system time
  double heap_bytes = 0;     ///< the most that was allocated at a time, less what was when it began
  double process_bytes = 0;  ///< the most memory that the process held, itself included
};

/// Runs the work in a forked process, so that neither earlier nor later work shows in its memory.
/// REQUIRES no other threads. Throws Error when the work throws or the process ends otherwise.
Usage run_in_own_process(const std::function<double()>& work);

}  // namespace stagecraft::bench
