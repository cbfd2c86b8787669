#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// What a rank's need is divided by: 1 for all if they are to be alike, or the rank's memory.
using Shares = std::vector<double>;

/// The memory that the layers [first, end) need as one stage, and whether the stage recomputes: the
/// cheaper way that is allowed.
std::pair<double, bool> least_stage_need(const StageComposer& composer, int32_t first, int32_t end,
                                         RecomputeChoice recompute);

/// The split into one stage a rank whose fullest rank needs least, by its share. Exact. REQUIRES
/// at least as many layers as shares.
LeastMemory with_one_stage(const StageComposer& composer, const Shares& shares,
                           RecomputeChoice recompute);

/// The same over all splits of the space. Nothing if the model has fewer layers than stages.
std::optional<LeastMemory> least_need(const StageComposer& composer, const SearchSpace& space,
                                      const Shares& shares);

}  // namespace stagecraft::plan
