#include "stagecraft/schedule/passes/split_backward.h"

#include <utility>
#include <vector>

#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {

Schedule split_backward(const Schedule& schedule) {
  require_level(schedule, Level::kCompute, "split_backward");
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (const ActionList& list : schedule.lists()) {
    ActionList& out = lists.emplace_back();
    out.reserve(list.size() + list.size() / 2);
    for (const Slot& slot : SlotRange(list)) {
      const std::size_t first = out.size();
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
      const std::size_t end = out.size();
      for (std::size_t i = first; i < end; ++i) {
        const Action action = out[i];
        if (action.type() != ActionType::kBackward) continue;
        out[i] = action.with_type(ActionType::kBackwardInput);
        out.push_back(action.with_type(ActionType::kBackwardWeight));
      }
    }
  }
  return {Level::kCompute, schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
