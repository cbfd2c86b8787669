#pragma once

#include <chrono>

#include "stagecraft/transport/transport.h"

namespace stagecraft::python {

/// The tick of a step that waits (base/wait_tick.h): checks for signals, and every 30 s of a wait
/// logs the position of each rank. STAGECRAFT_WAIT_LOG sets the number of seconds; 0 logs nothing.
class WaitWatch {
 public:
  /// Without a transport nothing is logged.
  explicit WaitWatch(const Transport* transport);

  void operator()();

 private:
  using Clock = std::chrono::steady_clock;

  void log_if_due();

  const Transport* transport_;
  std::chrono::duration<double> period_;
  Clock::time_point next_;
};

}  // namespace stagecraft::python
