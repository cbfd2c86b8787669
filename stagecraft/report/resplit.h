#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// Estimates the costs of the same model with `count` stages of equal length. The cost of a stage
/// is spread evenly over it, and the pieces that form a new stage are added. With the same number
/// of stages nothing changes. REQUIRES at least one stage on both sides.
std::vector<StageCost> resplit_costs(std::span<const StageCost> stages, int32_t count);

/// The same for memory. The last piece of a stage sends what the stage sent. A value that no longer
/// crosses a boundary stays on its rank.
std::vector<StageMemory> resplit_memory(std::span<const StageMemory> stages, int32_t count);

}  // namespace stagecraft
