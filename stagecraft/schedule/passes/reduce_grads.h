#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Inserts a stage's REDUCE_GRAD right behind the slot with its last B or W, that is the one with
/// which all microbatches have had theirs. Idle slots go.
///
/// REQUIRES level kCompute without REDUCE_GRAD (ArgumentError).
Schedule reduce_grads(const Schedule& schedule);

}  // namespace stagecraft
