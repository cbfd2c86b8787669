#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// The lookahead of each rank (shard_stages) that costs no time: the smallest with which the
/// simulated step is as fast as with the largest. A small lookahead holds fewer weights. `costs`
/// must have CostModel::gather, measured or estimated. ArgumentError unless the level is kCompute
/// and max_active_stages >= 1, and if the schedule has UNSHARD or RESHARD.
std::vector<int32_t> find_unshard_lookahead(const Schedule& schedule, const CostModel& costs,
                                            const StageGraph& graph, int32_t max_active_stages);

}  // namespace stagecraft
