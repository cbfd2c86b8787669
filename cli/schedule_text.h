#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// A good schedule as "csv", "json" or "text". Text is a table. At the compute level its lines are
/// time steps: those of the schedule's idle slots or, without any, those of a run in which every
/// slot takes one step.
std::string format_schedule(const Schedule& schedule, std::string_view format);

/// "4 ranks, 8 stages, 8 microbatches".
std::string describe_shape(const Schedule& schedule);

/// "1 microbatch", "2 microbatches".
std::string format_microbatches(int32_t count);

}  // namespace stagecraft::cli
