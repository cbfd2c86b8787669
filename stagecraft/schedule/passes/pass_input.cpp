#include "stagecraft/schedule/passes/pass_input.h"

#include <algorithm>

#include "stagecraft/base/check.h"

namespace stagecraft {

void require_level(const Schedule& schedule, Level level, std::string_view pass) {
  require<ArgumentError>(schedule.level() == level, "{}: expected a {} schedule, got a {} one",
                         pass, to_string(level), to_string(schedule.level()));
}

bool has_any(const Schedule& schedule, std::initializer_list<ActionType> types) {
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      if (std::find(types.begin(), types.end(), action.type()) != types.end()) return true;
    }
  }
  return false;
}

}  // namespace stagecraft
