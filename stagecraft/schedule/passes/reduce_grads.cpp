#include "stagecraft/schedule/passes/reduce_grads.h"

#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {

Schedule reduce_grads(const Schedule& schedule) {
  require_level(schedule, Level::kCompute, "reduce_grads");
  require<ArgumentError>(!has_any(schedule, {ActionType::kReduceGrad}),
                         "reduce_grads: the schedule has REDUCE_GRAD already");
  IndexedVector<StageId, int32_t> left(schedule.num_stages(), schedule.num_microbatches());
  return rewrite_lists(schedule, [&](const ActionList& list, ActionList& out) {
    out.reserve(list.size() + 8);
    for (const Slot& slot : SlotRange(list)) {
      if (slot.is_idle()) continue;
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
      for (const Action part : slot.parts()) {
        if (!makes_weight_gradients(part.type())) continue;
        if (!left.contains(part.stage())) continue;  // for the verifier to refuse
        if (--left[part.stage()] == 0) {
          out.emplace_back(part.stage(), ActionType::kReduceGrad);
        }
      }
    }
  });
}

}  // namespace stagecraft
