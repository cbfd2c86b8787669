#pragma once

#include <functional>

namespace stagecraft::bench {

/// The time and memory of a piece of work.
struct Usage {
  double result = 0;         ///< what the work returned
  double seconds = 0;        ///< on one core: user and system time
  double heap_bytes = 0;     ///< the peak of allocated bytes, less those at the beginning
  double process_bytes = 0;  ///< the most memory that the process held, itself included
};

/// Runs the work in a forked process, so that earlier work does not count as its memory. REQUIRES
/// no other threads. Throws Error when the work throws or the process ends otherwise.
Usage run_in_own_process(const std::function<double()>& work);

}  // namespace stagecraft::bench
