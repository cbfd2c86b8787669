#include "stagecraft/schedule/passes/split_backward.h"

#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {

Schedule split_backward(const Schedule& schedule) {
  require_level(schedule, Level::kCompute, "split_backward");
  return rewrite_lists(schedule, [](const ActionList& list, ActionList& out) {
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
  });
}

}  // namespace stagecraft
