#pragma once

#include <vector>

#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// The memory that the fullest rank lacks; 0 if every rank holds at least one microbatch.
double lacking(const ScheduleProblem& problem);

/// The compute time of each rank for a microbatch of size 1.
std::vector<double> work_of_ranks(const ScheduleProblem& problem);

/// Improves a choice by local search. The moves: move a boundary, shift neighbouring boundaries
/// together, toggle recompute (`may_toggle`), swap ranks that differ. A move helps if less memory
/// is lacking, then if the lower bound falls, then if the work of the ranks gets more even. Ends
/// when no move helps, or at the limit.
PlanChoice improve_split(const StageComposer& composer, PlanChoice choice, const SearchLimit& limit,
                         bool may_toggle);

}  // namespace stagecraft::plan
