#pragma once

#include <atomic>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "stagecraft/plan/make_plan.h"

namespace stagecraft::cli {

/// What the command line and the cost file say together. BadUsage for what is wrong with either.
PlanProblem make_problem(const PlanCommand& command);

/// The options of the search. BadUsage likewise.
PlanOptions make_plan_options(const PlanSearch& search);

/// Memory of ranks: one amount for all or one for each, "8GB" or "8GB,8GB,6GB". `bytes` is set if
/// one has a unit. BadUsage for anything else.
std::vector<double> parse_memory(const std::string& option, const std::string& text, bool& bytes);

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
