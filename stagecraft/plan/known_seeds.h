#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/plan/word.h"

namespace stagecraft::plan {

/// The built-in schedules of the problem's shape and placement, by name. They may not fit.
std::vector<std::pair<std::string, Words>> known_seeds(const ScheduleProblem& problem,
                                                       const Instance& in);

}  // namespace stagecraft::plan
