#pragma once

#include <chrono>
#include <string>
#include <vector>

#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/sim/quantity.h"

namespace stagecraft::cli {

/// Reads a quantity. Like all functions here, throws BadUsage, which names the option, for a wrong
/// text.
Quantity read_quantity(const std::string& option, const std::string& text);

/// Sets the memory of ranks to --memory: one amount for all or one for each: "8GB" or
/// "8GB,8GB,6GB". Sets `bytes` if an amount has a unit.
void set_memory(std::vector<PlanRank>& ranks, const std::string& text, bool& bytes);

/// "5s", "500ms"; a number alone is seconds.
std::chrono::nanoseconds parse_time_limit(const std::string& option, const std::string& text);

}  // namespace stagecraft::cli
