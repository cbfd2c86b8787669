#pragma once

#include "cli/input.h"
#include "stagecraft/sim/cost_model.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unit_steps.h"

namespace stagecraft::cli {

/// BadUsage for costs that do not fit, BadSchedule for a schedule that cannot be executed.
Simulation simulate(const Loaded& loaded, const CostModel& costs);

/// A run in which every action takes one step; REQUIRES a lowered schedule. BadSchedule for a
/// schedule that cannot be executed.
UnitSteps simulate_unit_steps(const Loaded& loaded);

/// BadSchedule, naming rank, action and amount, if the simulation went over the memory cap.
void check_cap(const Loaded& loaded, const CostModel& costs, const Simulation& simulation);

}  // namespace stagecraft::cli
