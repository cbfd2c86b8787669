#pragma once

#include <vector>

#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/plan/split_search.h"

namespace stagecraft::plan {

/// What the fullest rank lacks; 0 if every rank holds at least one microbatch.
double lacking(const ScheduleProblem& problem);

/// What each rank computes for a microbatch of size 1.
std::vector<double> work_of_ranks(const ScheduleProblem& problem);

/// Moves boundaries, shifts neighbouring ones together, toggles recompute (`may_toggle`) and swaps
/// ranks that differ, for as long as a move helps: less lacking memory, else a lower bound, else
/// more even ranks.
PlanChoice improve_split(const StageComposer& composer, PlanChoice choice, const SearchLimit& limit,
                         bool may_toggle);

}  // namespace stagecraft::plan
