#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A schedule as JSON, for programs that prefer it to CSV:
///
///   {"stagecraft": 1, "level": "compute", "ranks": 2, "stages": 2, "microbatches": 1,
///    "placement": [0, 1],
///    "actions": [["0F0", "", "0B0"], ["", "1F0", "1B0"]]}
///
/// An idle slot is "", a stage that no rank holds has null in `placement`.
std::string to_json(const Schedule& schedule);

/// The inverse. From a plan file (plan/plan_file.h) it reads the schedule. ParseError, with line
/// and column, for text that is not JSON; ParseError or ArgumentError, naming the member, for JSON
/// that is not a schedule.
Schedule parse_json(std::string_view text);

}  // namespace stagecraft
