#pragma once

#include <string>

#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Tells the other ranks, threads or processes that are forked later, that something has happened.
class Signal {
 public:
  Signal();
  ~Signal();
  Signal(const Signal&) = delete;
  Signal& operator=(const Signal&) = delete;

  void give() const;
  /// Waits until it is given; false if that takes more than a minute.
  bool wait() const;

 private:
  int ends_[2];  ///< of a pipe, which is never read
};

/// Called on both ranks of a world. Rank 0 fails with sends that rank 1 never receives, because
/// rank 1 fails in its first action. Expects that both steps throw although the time-out is ten
/// minutes, and that the next step works.
void check_untaken_sends(Transport& transport, const std::string& schedule, const Signal& posted);

/// Called on both ranks of a world. Rank 0 fails in its third forward and steps again with a second
/// batch while rank 1 is in a forward of the first attempt. Expects that rank 1 computes nothing of
/// the second batch before its step throws, and that the common step with the second batch has the
/// gradients of that batch.
void check_early_retry(Transport& transport, const std::string& schedule, const Signal& entered,
                       const Signal& retried);

}  // namespace stagecraft
