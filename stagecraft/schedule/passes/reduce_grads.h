#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Inserts a stage's REDUCE_GRAD directly after the slot with the last B or W of its microbatches.
/// Removes idle slots.
///
/// ArgumentError unless the level is kCompute, and if the schedule has REDUCE_GRAD.
Schedule reduce_grads(const Schedule& schedule);

}  // namespace stagecraft
