#pragma once

#include "stagecraft/plan/correct_layers.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/runtime/action_memory.h"

namespace stagecraft::detail {

/// Sets the memory and the peaks of a layer from the memory of its actions while it ran alone. Only
/// the memory that I frees can be negative: then I takes memory.
void set_layer_memory(PlanLayer& layer, const StageMemory& memory);

/// Sets the memory and the peaks of a stage from the memory of its actions in a step. No value is
/// negative. A send can only release: memory that a send of a busy rank was measured to add, for
/// example a buffer of the transport, is not the stage's.
void set_run_memory(MeasuredStage& stage, const StageMemory& memory);

}  // namespace stagecraft::detail
