#pragma once

#include <cstdint>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// The divisor of each rank's need: 1 for all ranks if they get the same memory, or the memory of
/// the rank.
using Shares = std::vector<double>;

/// The memory that the layers [first, end) need as one stage, and whether the stage recomputes.
/// Chooses the way that needs less memory, of those that are allowed.
std::pair<double, bool> least_stage_need(const StageComposer& composer, int32_t first, int32_t end,
                                         RecomputeChoice recompute);

/// The split into one stage a rank that minimises the largest need / share of a rank. Exact.
/// REQUIRES at least as many layers as shares.
LeastMemory with_one_stage(const StageComposer& composer, const Shares& shares,
                           RecomputeChoice recompute);

/// The same over all splits of the space. Nothing if the model has fewer layers than stages.
std::optional<LeastMemory> least_need(const StageComposer& composer, const SearchSpace& space,
                                      const Shares& shares);

}  // namespace stagecraft::plan
