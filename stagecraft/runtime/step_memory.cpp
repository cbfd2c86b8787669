#include "stagecraft/runtime/step_memory.h"

#include <ATen/core/Tensor.h>

namespace stagecraft {

namespace {

StageMemory memory_of_stage(const Stage& stage) {
  StageMemory memory;
  memory.stage = stage.index();
  for (const auto& [name, parameter] : stage.parameters()) {
    const auto bytes = static_cast<int64_t>(parameter.nbytes());
    memory.parameters += bytes;
    if (parameter.requires_grad()) memory.gradients += bytes;
  }
  return memory;
}

}  // namespace

void StepMemory::start(MemoryMeter& meter, int account, std::span<const Stage> stages,
                       int64_t held_before) {
  meter_ = &meter;
  account_ = account;
  peak_ = 0;
  meter.reset_peak(account);
  stages_.clear();
  for (const Stage& stage : stages) stages_.push_back(memory_of_stage(stage));
  recorder_.start_memory(held_before);
}

// Begins an action. Returns the bytes before it.
int64_t StepMemory::begin() {
  peak_ = std::max(peak_, meter_->peak(account_));
  meter_->reset_peak(account_);
  return meter_->current(account_);
}

void StepMemory::end(Action action, std::size_t offset, int64_t before) {
  const auto stage = std::ranges::find(stages_, action.stage(), &StageMemory::stage);
  ActionMemory& memory = stage->of(action.type());
  const RankRecording::Held held{meter_->peak(account_), meter_->current(account_)};
  memory = {.is_measured = true, .change = held.after - before, .peak = held.most - before};
  recorder_.set_held(offset, held);
  peak_ = std::max(peak_, held.most);
}

}  // namespace stagecraft
