#pragma once

#include "stagecraft/plan/schedule_problem.h"

namespace stagecraft {

/// The best value of the objective over all orders that take microbatches in turn, by going through
/// all of them: states are how many of each kind of action were done, and of two ways to a state of
/// which one is nowhere later, only that one is followed. Shares no code with stagecraft/plan.
/// Links have no bandwidth; for small problems. Infinite when none fits.
double exact_optimum(const ScheduleProblem& problem);

}  // namespace stagecraft
