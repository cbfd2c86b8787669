#pragma once

#include "stagecraft/plan/correct_layers.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/runtime/action_memory.h"

namespace stagecraft::detail {

/// The memory and the peaks of a layer from what its actions held while it ran alone. No value but
/// what I frees is negative: an I that takes memory frees a negative amount.
void set_layer_memory(PlanLayer& layer, const StageMemory& memory);

/// The memory and the peaks of a stage from what its actions held in a step. No value is negative.
/// A send can only release: memory that a send of a busy rank was measured to add, for example a
/// buffer of the transport, is not the stage's.
void set_run_memory(MeasuredStage& stage, const StageMemory& memory);

}  // namespace stagecraft::detail
