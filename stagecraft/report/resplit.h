#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// What the same model would cost in another number of stages of equal length: a stage's cost is
/// spread evenly over it, and pieces of neighbours that end up in one stage are added. With as many
/// stages as there are, nothing changes. REQUIRES at least one stage on both sides.
std::vector<StageCost> resplit_costs(std::span<const StageCost> stages, int32_t count);

/// The same for memory. What the last piece of a stage sends is what the stage sent; a value that
/// no longer crosses a border stays where it is.
std::vector<StageMemory> resplit_memory(std::span<const StageMemory> stages, int32_t count);

}  // namespace stagecraft
