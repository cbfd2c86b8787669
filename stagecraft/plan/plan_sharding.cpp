#include "stagecraft/plan/plan_sharding.h"

#include <algorithm>
#include <functional>
#include <vector>

#include "stagecraft/base/assert.h"
#include "stagecraft/plan/plan_problem.h"

namespace stagecraft {

HeldMemory held_memory(const PlanLayer& layer, const PlanSharding& sharding) {
  SC_ASSERT(sharding.kind < ShardKind::kGradients || layer.weights == 0 ||
            layer.gradients.has_value());
  const double share = 1.0 / sharding.replicas;
  const double gradients = layer.gradients.value_or(0);
  const double parameters = layer.weights - gradients;
  // A gradient has the size of its parameter.
  const double trained = std::min(parameters, gradients);
  HeldMemory held;
  switch (sharding.kind) {
    case ShardKind::kNone:
      held.pieces = layer.fixed_memory();
      break;
    case ShardKind::kOptimizer:
      held.pieces = layer.weights + share * layer.state;
      break;
    case ShardKind::kGradients:
      held.pieces = layer.weights + share * (gradients + layer.state);
      break;
    case ShardKind::kParameters:
      held.pieces = parameters - trained + share * (trained + gradients + layer.state);
      held.gathered = trained;
      held.gradients = gradients;
      break;
  }
  return held;
}

RankHeld held_by_rank(std::span<const HeldMemory> stages, int32_t active) {
  SC_ASSERT(active >= 1);
  RankHeld held;
  std::vector<double> gathered;
  double gradients = 0;
  for (const HeldMemory& stage : stages) {
    held.most += stage.pieces + stage.gradients;
    held.least += stage.pieces;
    gradients = std::max(gradients, stage.gradients);
    gathered.push_back(stage.gathered);
  }
  std::sort(gathered.begin(), gathered.end(), std::greater<>());
  const auto count = std::min(gathered.size(), static_cast<std::size_t>(active));
  for (std::size_t i = 0; i < count; ++i) held.most += gathered[i];
  // At least one stage is unsharded when the rank computes. Which one depends on the schedule, so
  // the smallest counts.
  if (!gathered.empty()) held.least += gathered.back();
  held.least += gradients;
  return held;
}

}  // namespace stagecraft
