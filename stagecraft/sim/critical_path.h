#pragma once

#include <vector>

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/transfers.h"

namespace stagecraft {

/// The path from the action that ends last back to an action that starts at 0: each step is the
/// action that the next one had to wait for.
std::vector<PathStep> trace_critical_path(const Schedule& schedule, const ActionIndex& index,
                                          const Transfers& transfers, const Simulation& simulation);

}  // namespace stagecraft
