#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/trainer_world.h"
#include "stagecraft/train/training_state.h"

namespace stagecraft {

/// The checkpoints of a trainer: of the states of all ranks, or this rank's part if replicas are
/// sharded. All ranks make the same calls.
class TrainingCheckpoints {
 public:
  /// `world` and `state` must outlive the object. `seed`: of the random state.
  TrainingCheckpoints(TrainerWorld& world, TrainingState& state, uint64_t seed)
      : world_(world), state_(state), seed_(seed) {}

  /// The checkpoint after `step` updates. Not called in `together`.
  Checkpoint make(int64_t step, std::string notes);
  /// Sets the states and the random state. ArgumentError or MetadataError, before anything is
  /// changed, if this rank cannot restore the checkpoint.
  void restore(const Checkpoint& checkpoint);

 private:
  Checkpoint::Part part_of_rank();

  TrainerWorld& world_;
  TrainingState& state_;
  uint64_t seed_;
  uint64_t run_ = 0;  // 0: not drawn yet
};

}  // namespace stagecraft
