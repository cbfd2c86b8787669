#include "stagecraft/runtime/memory_estimate.h"

#include <algorithm>
#include <cstddef>

#include "stagecraft/base/check.h"

namespace stagecraft {

namespace {

ActionMemory measured(const StageMemory& stage, ActionType type) {
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

/// The bytes that a microbatch still holds after its last backward.
int64_t left_by(const StageMemory& stage, bool is_split) {
  const int64_t left = measured(stage, ActionType::kForward).change +
                       measured(stage, ActionType::kSendForward).change +
                       measured(stage, ActionType::kSendBackward).change;
  if (!is_split) return left + measured(stage, ActionType::kBackward).change;
  return left + measured(stage, ActionType::kBackwardInput).change +
         measured(stage, ActionType::kBackwardWeight).change;
}

// Ranks that are threads share the values that they exchange. While an action was measured, a
// different rank may have released a value on this rank's account. A microbatch cannot free more
// than it allocated.
ActionMemory action_memory(const StageMemory& stage, ActionType type) {
  ActionMemory memory = measured(stage, type);
  if (type == ActionType::kBackward || type == ActionType::kBackwardWeight) {
    memory.change -= std::min<int64_t>(left_by(stage, type == ActionType::kBackwardWeight), 0);
  }
  return memory;
}

/// Calls `visit(offset, most, after)` for each action of a rank's list that has memory, in bytes
/// above what the rank holds before the step.
template <typename Visit>
void walk(std::span<const Action> list, std::span<const StageMemory> stages, const Visit& visit) {
  int64_t held = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!has_microbatch(list[i].type())) continue;
    const ActionMemory memory = action_memory(stages[list[i].stage().position()], list[i].type());
    visit(i, held + memory.peak, held + memory.change);
    held += memory.change;
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
      rank.parameters += stages[stage.position()].parameters;
      rank.gradients += stages[stage.position()].gradients;
    }
    const std::span<const Action> list = schedule.actions(Rank(r));
    walk(list, stages, [&](std::size_t i, int64_t most, int64_t) {
      if (most <= rank.activations) return;
      rank.activations = most;
      rank.at = to_string(list[i]);
    });
  }
  return estimate;
}

std::vector<std::vector<MemorySample>> estimate_memory_over_time(
    const Schedule& schedule, const std::vector<std::vector<Interval>>& timeline,
    std::span<const StageMemory> stages) {
  const MemoryEstimate estimate = estimate_memory(schedule, stages);
  std::vector<std::vector<MemorySample>> memory;
  for (std::size_t r = 0; r < estimate.ranks.size(); ++r) {
    const auto before =
        static_cast<double>(estimate.ranks[r].parameters + estimate.ranks[r].gradients);
    std::vector<MemorySample>& samples = memory.emplace_back();
    samples.push_back({0, before});
    walk(schedule.lists()[r], stages, [&](std::size_t i, int64_t most, int64_t after) {
      const Interval& time = timeline[r][i];
      samples.push_back({time.start, before + static_cast<double>(most)});
      samples.push_back({time.end, before + static_cast<double>(after)});
    });
  }
  return memory;
}

}  // namespace stagecraft
