#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"

namespace stagecraft {

/// What no plan of this model on these ranks can beat.
struct AnySplitBound {
  double value = 0;
  /// All work, shared out evenly by the speeds of the ranks.
  double even_share = 0;
};

/// A bound for every split into one of these numbers of stages a rank, every placement of a lap in
/// any order of ranks, every recompute and every order of the actions:
///
/// - even share: all ranks together have to do the work of all microbatches. The rank at the k-th
///   place of a lap cannot begin before k layers and k transfers of one microbatch (not for span).
/// - largest layer: one rank does it for every microbatch.
/// - one microbatch: all F and I, one after the other on the fastest rank, with their transfers.
/// - one stage a rank: the best division by dynamic programming of the largest of B1 to B3 of a
///   stage alone. What comes before and after a stage depends on where it begins and ends only, if
///   the transfers in between count as the cheapest ones.
///
/// The last holds for one stage a rank; with more the bound is the largest of the others.
AnySplitBound bound_any_split(const StageComposer& composer,
                              const std::vector<int32_t>& stages_per_rank, bool may_recompute);

}  // namespace stagecraft
