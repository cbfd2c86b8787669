#include <map>
#include <utility>

#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/time_use.h"

namespace stagecraft {

CostModel measured_costs(const Recording& recording) {
  const ClosedRecording closed = close(recording);
  CostModel costs;
  costs.stage = {.forward = 0, .backward_input = 0, .backward_weight = 0};
  std::map<std::pair<StageId, MicrobatchId>, StageCost> measured;
  for (std::size_t r = 0; r < closed.ranks.size(); ++r) {
    const ActionList& list = recording.schedule.lists()[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const auto& times = closed.ranks[r].actions[i];
      if (!is_compute(list[i].type()) || times.begin < 0) continue;
      const double own = microseconds(times.end - times.begin - times.waited);
      StageCost& cost =
          measured.try_emplace({list[i].stage(), list[i].microbatch()}, costs.stage).first->second;
      switch (list[i].type()) {
        case ActionType::kForward:
          cost.forward = own;
          break;
        case ActionType::kBackwardInput:
          cost.backward_input = own;
          break;
        case ActionType::kBackwardWeight:
          cost.backward_weight = own;
          break;
        default:
          cost.backward = own;
          break;
      }
    }
  }
  for (const auto& [key, cost] : measured) {
    costs.microbatches.push_back({key.first, key.second, cost});
  }
  return costs;
}

}  // namespace stagecraft
