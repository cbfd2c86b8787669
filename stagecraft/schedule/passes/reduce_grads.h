#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Inserts a stage's REDUCE_GRAD directly after the slot with the last B or W of its microbatches.
/// Removes idle slots.
///
/// REQUIRES level kCompute without REDUCE_GRAD (ArgumentError).
Schedule reduce_grads(const Schedule& schedule);

}  // namespace stagecraft
