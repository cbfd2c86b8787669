#pragma once

#include <initializer_list>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// ArgumentError, which begins with the name of the pass, unless the schedule has that level.
void require_level(const Schedule& schedule, Level level, std::string_view pass);
/// Whether an action of one of these types occurs.
bool has_any(const Schedule& schedule, std::initializer_list<ActionType> types);

/// The schedule with other lists: `write(list, out)` writes one from each of its lists.
template <typename Write>
Schedule rewrite_lists(const Schedule& schedule, const Write& write) {
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (const ActionList& list : schedule.lists()) write(list, lists.emplace_back());
  return {schedule.level(), schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
