#pragma once

#include <optional>
#include <vector>

#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// The split and recompute for two stages a rank that minimise the largest need / share of a rank.
/// Exact, by dynamic programming over the ends of both stages of each rank. A V is built from both
/// of its ends. A loop is built from the beginnings of both laps, for every place where the second
/// lap can begin.
///
/// `choice` has the placement. Nothing if no split needs less than `known`, if the choice does not
/// have two stages a rank, and for models with more layers than can be examined in a second or two
/// (about 200 in a V, 90 in a loop).
std::optional<LeastMemory> least_paired_need(const StageComposer& composer,
                                             const std::vector<double>& shares,
                                             RecomputeChoice recompute, const PlanChoice& choice,
                                             double known);

}  // namespace stagecraft::plan
