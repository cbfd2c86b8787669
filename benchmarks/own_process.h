#pragma once

#include <functional>

namespace stagecraft::bench {

/// What a piece of work took.
struct Usage {
  double result = 0;   ///< what the work returned
  double seconds = 0;  ///< on one core: user and system time
  /// The most memory the process held, less what it held when the work began.
  double peak_bytes = 0;
};

/// Runs the work in a forked process, so that neither earlier nor later work shows in its memory.
/// REQUIRES no other threads. Throws Error when the work throws or the process ends otherwise.
Usage run_in_own_process(const std::function<double()>& work);

}  // namespace stagecraft::bench
