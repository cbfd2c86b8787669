#pragma once

#include <cstddef>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft::detail {

/// A slot in the list of a rank.
struct RankSlot {
  Rank rank;
  std::size_t offset = 0;
};

/// The slots of all ranks in an order in which one thread can execute them: those of each rank in
/// the order of its list, and each slot after everything that it needs. Error if there is no such
/// order.
std::vector<RankSlot> one_thread_order(const Schedule& schedule, const StageGraph& graph);

}  // namespace stagecraft::detail
