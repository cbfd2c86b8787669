#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// A table to read: one line a time step, one column a rank, '.' for an idle slot.
///
///   step  rank 0  rank 1
///      0  0F0     .
///      1  0F1     1F0
std::string to_table(const Schedule& schedule);

}  // namespace stagecraft
