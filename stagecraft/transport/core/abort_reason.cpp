#include "stagecraft/transport/core/abort_reason.h"

#include "stagecraft/base/error.h"

namespace stagecraft {

AbortReason reason_for(Rank rank, const std::exception_ptr& error) {
  return {rank, "rank " + to_string(rank) + ": " + describe(error), error};
}

}  // namespace stagecraft
