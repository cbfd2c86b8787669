#pragma once

#include <chrono>
#include <cstddef>
#include <string>
#include <vector>

namespace stagecraft::cli {

/// The memory of each of `ranks` ranks, from one amount for all or one for each: "8GB" or
/// "8GB,8GB,6GB". `bytes` is set if one has a unit. BadUsage, which names the option, for anything
/// else.
std::vector<double> parse_memory(const std::string& option, const std::string& text,
                                 std::size_t ranks, bool& bytes);

/// "5s", "500ms"; a number alone is seconds. BadUsage, which names the option, for anything else.
std::chrono::nanoseconds parse_time_limit(const std::string& option, const std::string& text);

}  // namespace stagecraft::cli
