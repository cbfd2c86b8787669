#pragma once

#include <vector>

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/transfers.h"

namespace stagecraft {

/// From the action that ends last back to one that starts at 0, by what each had to wait for.
std::vector<PathStep> trace_critical_path(const Schedule& schedule, const ActionIndex& index,
                                          const Transfers& transfers, const Simulation& simulation);

}  // namespace stagecraft
