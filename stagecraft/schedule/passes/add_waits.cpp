#include "stagecraft/schedule/passes/add_waits.h"

#include <optional>
#include <unordered_set>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {
namespace {

bool is_send(ActionType type) {
  return type == ActionType::kSendForward || type == ActionType::kSendBackward;
}

}  // namespace

Schedule add_send_waits(const Schedule& schedule) {
  require_level(schedule, Level::kLowered, "add_send_waits");
  require<ArgumentError>(
      !has_any(schedule, {ActionType::kWaitSendForward, ActionType::kWaitSendBackward}),
      "add_send_waits: the schedule has waits for sends already");
  return rewrite_lists(schedule, [&](const ActionList& list, ActionList& out) {
    out.reserve(list.size() + list.size() / 3);
    ActionList sends;
    std::unordered_set<Action> pending;
    for (const Slot& slot : SlotRange(list)) {
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
      for (const Action part : slot.parts()) {
        if (is_send(part.type())) {
          sends.push_back(part);
          pending.insert(part);
        } else if (makes_input_gradients(part.type()) &&
                   pending.erase(part.with_type(ActionType::kSendForward)) > 0) {
          out.push_back(part.with_type(ActionType::kWaitSendForward));
        }
      }
    }
    for (const Action send : sends) {
      if (pending.contains(send)) out.push_back(send.with_type(wait_of(send.type())));
    }
  });
}

Schedule add_reduction_waits(const Schedule& schedule, ReductionWait where) {
  require_level(schedule, Level::kCompute, "add_reduction_waits");
  require<ArgumentError>(!has_any(schedule, {ActionType::kWaitReduceGrad}),
                         "add_reduction_waits: the schedule has WAIT_REDUCE_GRAD already");
  return rewrite_lists(schedule, [&](const ActionList& list, ActionList& out) {
    out.reserve(list.size() + 8);
    std::optional<StageId> pending;
    const auto wait = [&] {
      if (pending) out.emplace_back(*pending, ActionType::kWaitReduceGrad);
      pending.reset();
    };
    for (const Action action : list) {
      const bool is_reduction = action.type() == ActionType::kReduceGrad;
      if (is_reduction) wait();
      out.push_back(action);
      if (!is_reduction) continue;
      pending = action.stage();
      if (where == ReductionWait::kAtOnce) wait();
    }
    wait();
  });
}

}  // namespace stagecraft
