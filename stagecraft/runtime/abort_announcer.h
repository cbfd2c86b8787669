#pragma once

#include <memory>

#include "stagecraft/base/error.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Prints a table of the positions of all ranks when a deadline is missed or a rank is lost. Only
/// one rank prints it, once.
class AbortAnnouncer {
 public:
  /// `transport` must outlive the object.
  explicit AbortAnnouncer(Transport& transport) : transport_(transport) {}

  /// Aborts the world because this rank missed a deadline. If no abort came before, prints.
  void announce_and_abort(const TimeoutError& error);
  /// Prints if the world was aborted because a rank is lost, and this is the first of the remaining
  /// ranks.
  void announce_lost();

 private:
  Transport& transport_;
  std::shared_ptr<const AbortReason> announced_;  // the reason that was printed last
};

}  // namespace stagecraft
