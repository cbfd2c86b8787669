#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"

namespace stagecraft::plan {

/// Whether some ranks are not like the first.
bool differ(const std::vector<PlanRank>& ranks);

/// What the layers of a stage weigh when the first split is made.
enum class Weighing : uint8_t { kWork, kWorkWithRecompute, kForward, kMemory };

/// The split with the most even weights, without recompute.
PlanChoice first_choice(const StageComposer& composer, int32_t stages_per_rank,
                        PlacementStyle placement, Weighing weighing);

/// Recompute patterns to begin with where memory binds: the first stages hold the most microbatches
/// of a lap.
std::vector<std::vector<bool>> recompute_patterns(int32_t stages);

}  // namespace stagecraft::plan
