#pragma once

#include <chrono>
#include <string>
#include <vector>

namespace stagecraft::cli {

/// Memory of ranks: one amount for all or one for each, "8GB" or "8GB,8GB,6GB". `bytes` is set if
/// one has a unit. BadUsage, which names the option, for anything else.
std::vector<double> parse_memory(const std::string& option, const std::string& text, bool& bytes);

/// "5s", "500ms"; a number alone is seconds. BadUsage, which names the option, for anything else.
std::chrono::nanoseconds parse_time_limit(const std::string& option, const std::string& text);

}  // namespace stagecraft::cli
