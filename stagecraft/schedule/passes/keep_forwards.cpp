#include "stagecraft/schedule/passes/keep_forwards.h"

#include <algorithm>
#include <iterator>
#include <utility>
#include <vector>

namespace stagecraft {

Schedule keep_forwards(const Schedule& schedule) {
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (const ActionList& list : schedule.lists()) {
    std::copy_if(list.begin(), list.end(), std::back_inserter(lists.emplace_back()),
                 [](Action action) { return action.type() == ActionType::kForward; });
  }
  return {Level::kCompute, schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
