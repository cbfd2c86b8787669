#include "stagecraft/runtime/measured_memory.h"

#include <algorithm>
#include <cstdint>

namespace stagecraft::detail {
namespace {

double change(const StageMemory& memory, ActionType type) {
  return static_cast<double>(memory.of(type).change);
}

/// The most that an action holds above the larger of the bytes before it and after it.
double beside(const StageMemory& memory, ActionType type) {
  const ActionMemory& action = memory.of(type);
  return std::max(0.0, static_cast<double>(action.peak - std::max<int64_t>(action.change, 0)));
}

double released(const StageMemory& memory, ActionType send) {
  return std::max(0.0, -change(memory, send));
}

}  // namespace

void set_layer_memory(PlanLayer& layer, const StageMemory& memory) {
  StageCost& cost = layer.cost;
  cost.memory_forward = std::max(0.0, change(memory, ActionType::kForward));
  cost.memory_freed_by_weight =
      std::max(0.0, cost.memory_forward + change(memory, ActionType::kBackwardInput));
  cost.memory_freed_by_input = cost.memory_forward - cost.memory_freed_by_weight;
  layer.peak_forward = beside(memory, ActionType::kForward);
  layer.peak_input = beside(memory, ActionType::kBackwardInput);
  layer.peak_weight = beside(memory, ActionType::kBackwardWeight);
}

void set_run_memory(MeasuredStage& stage, const StageMemory& memory) {
  // The values that F has made for the next stage are not held by this stage, but are a part of the
  // peak of F.
  const double sent = released(memory, ActionType::kSendForward);
  const double held = std::max(0.0, change(memory, ActionType::kForward) - sent);
  stage.memory_forward = held;
  stage.peak_forward = beside(memory, ActionType::kForward) + sent;
  if (!memory.of(ActionType::kBackwardInput).is_measured) {
    stage.peak_input = beside(memory, ActionType::kBackward);
    return;
  }
  stage.memory_input = std::max(0.0, held + change(memory, ActionType::kBackwardInput) -
                                         released(memory, ActionType::kSendBackward));
  stage.peak_input = beside(memory, ActionType::kBackwardInput);
  stage.peak_weight = beside(memory, ActionType::kBackwardWeight);
}

}  // namespace stagecraft::detail
