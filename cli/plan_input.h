#pragma once

#include <atomic>

#include "cli/commands.h"
#include "stagecraft/plan/make_plan.h"

namespace stagecraft::cli {

/// The problem that the command line and the cost file define together. BadUsage for errors in
/// either.
PlanProblem make_problem(const PlanCommand& command);

/// The options of the search. BadUsage for errors in them.
PlanOptions make_plan_options(const PlanSearch& search);

/// Ends a plan's search at the first Ctrl-C. The second Ctrl-C ends the program. Only one Interrupt
/// may exist at a time.
class Interrupt {
 public:
  Interrupt();
  ~Interrupt();
  Interrupt(const Interrupt&) = delete;
  Interrupt& operator=(const Interrupt&) = delete;

  const std::atomic<bool>* flag() const;
};

}  // namespace stagecraft::cli
