#include "stagecraft/runtime/record/stage_times.h"

#include <cstddef>

#include "stagecraft/runtime/record/time_use.h"

namespace stagecraft {
namespace {

std::vector<double>* times_of(StageTimes& stage, ActionType type) {
  switch (type) {
    case ActionType::kForward:
      return &stage.forward;
    case ActionType::kBackwardInput:
      return &stage.backward_input;
    case ActionType::kBackwardWeight:
      return &stage.backward_weight;
    case ActionType::kBackward:
      return &stage.backward;
    default:
      return nullptr;
  }
}

}  // namespace

std::vector<StageTimes> stage_times(const Recording& recording) {
  const ClosedRecording closed = close(recording);
  std::vector<StageTimes> stages(static_cast<std::size_t>(recording.schedule.num_stages()));
  for (std::size_t r = 0; r < closed.ranks.size(); ++r) {
    const ActionList& list = recording.schedule.lists()[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      const RankRecording::ActionTimes& times = closed.ranks[r].actions[i];
      if (list[i].is_idle() || list[i].is_overlap() || times.begin < 0) continue;
      StageTimes& stage = stages[list[i].stage().position()];
      if (std::vector<double>* own = times_of(stage, list[i].type())) {
        own->push_back(microseconds(times.end - times.begin - times.waited));
      } else if (list[i].type() == ActionType::kSendForward) {
        stage.activations_sent += times.sent;
      } else if (list[i].type() == ActionType::kSendBackward) {
        stage.gradients_sent += times.sent;
      }
    }
  }
  return stages;
}

}  // namespace stagecraft
