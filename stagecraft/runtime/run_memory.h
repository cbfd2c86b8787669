#pragma once

#include "stagecraft/plan/correct_layers.h"
#include "stagecraft/runtime/action_memory.h"

namespace stagecraft::detail {

/// Sets the memory and the peaks of a stage from what its actions were measured to hold in a step.
/// No value is negative. A send can only release: memory that a send of a busy rank was measured to
/// add, for example a buffer of the transport, is not the stage's.
void set_run_memory(MeasuredStage& stage, const StageMemory& memory);

}  // namespace stagecraft::detail
