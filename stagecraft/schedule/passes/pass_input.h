#pragma once

#include <initializer_list>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// ArgumentError, beginning with the name of the pass, unless the schedule has that level.
void require_level(const Schedule& schedule, Level level, std::string_view pass);
/// Whether an action of one of these types occurs.
bool has_any(const Schedule& schedule, std::initializer_list<ActionType> types);

}  // namespace stagecraft
