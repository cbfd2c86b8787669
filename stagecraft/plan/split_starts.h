#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"

namespace stagecraft::plan {

/// Whether the ranks are not all alike.
bool differ(const std::vector<PlanRank>& ranks);

/// The weight of a layer when the first split is made.
enum class Weighing : uint8_t { kWork, kWorkWithRecompute, kForward, kMemory };

/// The split with the most even weights, without recompute.
PlanChoice first_choice(const StageComposer& composer, int32_t stages_per_rank,
                        PlacementStyle placement, Weighing weighing);

/// Recompute patterns to start with if memory binds: no stage, a quarter, a half, three quarters or
/// all of the stages recompute, the first or the last ones. (The first stages of a lap hold the
/// most microbatches.)
std::vector<std::vector<bool>> recompute_patterns(int32_t stages);

}  // namespace stagecraft::plan
