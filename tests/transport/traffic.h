#pragma once

#include <chrono>
#include <cstdint>

#include "stagecraft/base/deadline.h"
#include "stagecraft/transport/core/transfer_id.h"

namespace stagecraft {

/// What stage 0 sends stage 1 for a microbatch.
inline TransferId values(int32_t microbatch) {
  return {0, Direction::kForward, StageId(0), StageId(1), MicrobatchId(microbatch)};
}

/// Long enough for anything that happens at all.
inline Deadline soon() {
  return Deadline::after(std::chrono::seconds(20));
}

}  // namespace stagecraft
