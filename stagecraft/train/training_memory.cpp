#include "stagecraft/train/training_memory.h"

#include <cstdint>
#include <set>

#include "stagecraft/shard/parameter_shards.h"

namespace stagecraft {

Trainer::Memory training_memory(const TrainingState& state, const TrainerWorld& world) {
  Trainer::Memory memory{.optimizer = state.optimizer_bytes()};
  const ParameterShards* const shards = state.shards();
  std::set<const c10::TensorImpl*> seen;
  for (const ModelState& each : state.all()) {
    for (const at::Tensor& copy : each.copies) {
      const bool is_here = world.has_stage(each.stage);
      if (!is_here || !seen.insert(copy.unsafeGetTensorImpl()).second) continue;
      if (copy.grad().defined()) memory.gradients += static_cast<int64_t>(copy.grad().nbytes());
      if (shards != nullptr && shards->find_unit(copy) != nullptr) continue;
      memory.parameters += static_cast<int64_t>(copy.nbytes());
    }
  }
  if (shards == nullptr) return memory;
  memory.parameters += shards->whole_bytes();
  for (const auto& unit : shards->units()) {
    if (shards->kind() == ShardKind::kParameters) memory.parameters += unit->piece_bytes();
    if (unit->piece().grad().defined()) {
      memory.gradients += static_cast<int64_t>(unit->piece().grad().nbytes());
    }
  }
  return memory;
}

}  // namespace stagecraft
