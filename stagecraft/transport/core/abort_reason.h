#pragma once

#include <exception>
#include <string>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// Why a world was aborted. All ranks see the first reason.
struct AbortReason {
  Rank rank;            ///< the rank that failed
  std::string message;  ///< a complete sentence, with the rank
  /// The exception, for ranks of one process; otherwise null.
  std::exception_ptr cause = nullptr;
  /// The rank ended or fell silent; it has not reported a failure itself.
  bool is_lost = false;
};

/// The reason for a rank that failed with `error`: "rank 2: " and the text of the exception.
AbortReason reason_for(Rank rank, const std::exception_ptr& error);

}  // namespace stagecraft
