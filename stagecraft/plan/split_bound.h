#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"

namespace stagecraft {

/// A time that no plan of this model on these ranks can beat.
struct AnySplitBound {
  double value = 0;
  /// All work, divided evenly by the speeds of the ranks.
  double even_share = 0;
};

/// A bound for every split into one of these numbers of stages a rank, every order of the ranks in
/// a lap, every recompute and every order of the actions. It is the largest of:
///
/// - even share: all ranks together do the work of all microbatches. The rank at the k-th place of
///   a lap cannot begin before k layers and k transfers of one microbatch (not for span).
/// - largest layer: one rank does it for every microbatch.
/// - one microbatch: all F and I, one after the other on the fastest rank, with their transfers.
/// - one stage a rank: the best division by dynamic programming of the largest of B1 to B3 of a
///   stage alone. The times before and after a stage depend only on where it begins and ends, if
///   every transfer counts as the cheapest one.
///
/// The last one holds for one stage a rank only. With more stages a rank, the bound is the largest
/// of the others.
AnySplitBound bound_any_split(const StageComposer& composer,
                              const std::vector<int32_t>& stages_per_rank, bool may_recompute);

}  // namespace stagecraft
