#pragma once

#include <exception>
#include <string>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Why a world was aborted. The first reason given is the one that all ranks see.
struct AbortReason {
  Rank rank;            ///< the first that failed
  std::string message;  ///< what happened there, complete in itself
  /// The exception, where it can be handed over (ranks of one process); otherwise null.
  std::exception_ptr cause = nullptr;
  /// The rank is gone, or says nothing any more: it has not told of a failure itself.
  bool is_lost = false;
};

}  // namespace stagecraft
