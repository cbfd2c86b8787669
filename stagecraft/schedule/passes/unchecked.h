#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

// The passes that need a schedule without faults, for callers that have just verified it.
namespace stagecraft::unchecked {

Schedule add_transfers(const Schedule& schedule, const StageGraph& graph);
Schedule place_receives(const Schedule& schedule, int32_t prefetch, const StageGraph& graph);

}  // namespace stagecraft::unchecked
