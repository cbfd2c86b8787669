#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A table for people to read: a line for each time step, a column for each rank, '.' for an idle
/// slot.
///
///   step  rank 0  rank 1
///      0  0F0     .
///      1  0F1     1F0
std::string to_table(const Schedule& schedule);

}  // namespace stagecraft
