#include "stagecraft/runtime/memory_estimate.h"

#include <algorithm>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

ActionMemory memory_of(const StageMemory& stage, ActionType type) {
  const ActionMemory& own = stage.of(type);
  if (own.is_measured) return own;
  const ActionMemory& input = stage.of(ActionType::kBackwardInput);
  const ActionMemory& weight = stage.of(ActionType::kBackwardWeight);
  switch (type) {
    case ActionType::kBackward:
      return {true, input.change + weight.change, std::max(input.peak, input.change + weight.peak)};
    case ActionType::kBackwardInput:
      return stage.of(ActionType::kBackward);
    default:
      return {};
  }
}

}  // namespace

int64_t MemoryEstimate::peak() const {
  int64_t peak = 0;
  for (const RankMemory& rank : ranks) peak = std::max(peak, rank.total());
  return peak;
}

MemoryEstimate estimate_memory(const Schedule& schedule, std::span<const StageMemory> stages) {
  require<ArgumentError>(static_cast<int32_t>(stages.size()) >= schedule.num_stages(),
                         "the schedule has {} stages, got the memory of {}", schedule.num_stages(),
                         stages.size());
  MemoryEstimate estimate;
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    RankMemory& rank = estimate.ranks.emplace_back();
    for (const StageId stage : schedule.placement().stages(Rank(r))) {
      rank.parameters += stages[static_cast<std::size_t>(stage.value())].parameters;
      rank.gradients += stages[static_cast<std::size_t>(stage.value())].gradients;
    }
    int64_t held = 0;
    for (const Action action : schedule.actions(Rank(r))) {
      if (!has_microbatch(action.type())) continue;
      const ActionMemory memory =
          memory_of(stages[static_cast<std::size_t>(action.stage().value())], action.type());
      if (held + memory.peak > rank.activations) {
        rank.activations = held + memory.peak;
        rank.at = to_string(action);
      }
      held += memory.change;
    }
  }
  return estimate;
}

}  // namespace stagecraft
