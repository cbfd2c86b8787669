#pragma once

#include "stagecraft/train/trainer.h"
#include "stagecraft/train/trainer_world.h"
#include "stagecraft/train/training_state.h"

namespace stagecraft {

/// Trainer::memory: bytes of the stages in this process. Tensors that stages share count once, and
/// sharded parameters count with what this rank holds of them.
Trainer::Memory training_memory(const TrainingState& state, const TrainerWorld& world);

}  // namespace stagecraft
