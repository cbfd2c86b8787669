#include "stagecraft/schedule/passes/merge_backward.h"

#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {

Schedule merge_backward(const Schedule& schedule) {
  require_level(schedule, Level::kCompute, "merge_backward");
  return rewrite_lists(schedule, [](const ActionList& list, ActionList& out) {
    out.reserve(list.size());
    for (const Slot& slot : SlotRange(list)) {
      if (slot.is_idle()) continue;
      const Action action = slot.actions().front();
      if (action.type() == ActionType::kBackwardWeight && !out.empty() &&
          out.back() == action.with_type(ActionType::kBackwardInput)) {
        out.back() = action.with_type(ActionType::kBackward);
        continue;
      }
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
    }
  });
}

}  // namespace stagecraft
