#pragma once

#include <optional>
#include <vector>

#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// Two stages a rank: the split and recompute whose fullest rank needs least, by its share of
/// `shares`. By dynamic programming over the ends of both stages of each rank, so exact: a V is
/// taken from both of its ends, a loop from the beginnings of both laps, for every place where the
/// second lap begins.
///
/// `choice` says the placement. Nothing if no split needs less than `known`, for other than two
/// stages a rank, and for models with more layers than it can examine in a second or two (about 200
/// in a V, 90 in a loop).
std::optional<LeastMemory> least_paired_need(const StageComposer& composer,
                                             const std::vector<double>& shares,
                                             RecomputeChoice recompute, const PlanChoice& choice,
                                             double known);

}  // namespace stagecraft::plan
