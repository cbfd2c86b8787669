#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_search.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// An order in which microbatches of different sizes run faster. Entry k is the microbatch that
/// comes k-th. Tries ascending sizes, descending sizes, and small ones at both ends, then swaps
/// pairs while quick schedules get faster. The number of swaps is limited, so that the result
/// depends on the problem and the seed alone if the limit has no deadline.
std::vector<int32_t> order_microbatches(const StageComposer& composer, const PlanChoice& choice,
                                        uint64_t seed, const SearchLimit& limit);

/// The schedule with microbatch k renamed to order[k].
Schedule renumber_microbatches(const Schedule& schedule, const std::vector<int32_t>& order);

}  // namespace stagecraft
