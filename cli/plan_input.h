#pragma once

#include <atomic>

#include "cli/commands.h"
#include "stagecraft/plan/make_plan.h"

namespace stagecraft::cli {

/// What the command line and the cost file say together. BadUsage for what is wrong with either.
PlanProblem make_problem(const PlanCommand& command);

/// The options of the search. BadUsage likewise.
PlanOptions make_plan_options(const PlanSearch& search);

/// Ends a plan's search at the first Ctrl-C; the second one ends the program. One at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>* flag() const;
};

}  // namespace stagecraft::cli
