#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft::cli {

/// A good schedule as "csv", "json" or "text". Text is a table. At the compute level, each line is
/// a time step. If the schedule has idle slots, they define the steps. Otherwise the steps are
/// those of a run in which every slot takes one step.
std::string format_schedule(const Schedule& schedule, std::string_view format);

/// "4 ranks, 8 stages, 8 microbatches".
std::string describe_shape(const Schedule& schedule);

/// "1 microbatch", "2 microbatches".
std::string format_microbatches(int32_t count);

}  // namespace stagecraft::cli
