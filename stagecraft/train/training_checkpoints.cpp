#include "stagecraft/train/training_checkpoints.h"

#include <cstddef>
#include <random>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"

namespace stagecraft {

Checkpoint TrainingCheckpoints::make(int64_t step, std::string notes) {
  Checkpoint result{.step = step,
                    .seed = seed_,
                    .pipeline_steps = world_.completed_steps(),
                    .notes = std::move(notes),
                    .stages = {}};
  if (world_.shards()) {
    const auto is_here = [&](StageId stage) { return world_.has_stage(stage); };
    state_.fill_part(result, part_of_rank(), is_here);
    return result;
  }
  std::vector<std::vector<at::Tensor>> stages;
  world_.together(
      [&] { stages = world_.collect([&](StageId stage) { return state_.tensors_of(stage); }); });
  for (const auto& tensors : stages) {
    const StageId stage(static_cast<int32_t>(result.stages.size()));
    result.stages.push_back(state_.sections_of(stage, tensors));
  }
  result.is_elsewhere = stages.empty();
  return result;
}

void TrainingCheckpoints::restore(const Checkpoint& checkpoint) {
  require<ArgumentError>(!checkpoint.is_elsewhere,
                         "the tensors of this checkpoint are on rank 0: save the checkpoint, "
                         "then load it on all ranks");
  require<ArgumentError>(!checkpoint.part.has_value(),
                         "this is one rank's part of a checkpoint: save it on all ranks, then "
                         "load the checkpoint");
  require<MetadataError>(checkpoint.step >= 0,
                         "expected a checkpoint of step 0 or later, got step {}", checkpoint.step);
  require<MetadataError>(checkpoint.seed == seed_,
                         "the checkpoint was written with seed {}, but this trainer uses seed {}",
                         checkpoint.seed, seed_);
  state_.restore(checkpoint);
  world_.set_completed_steps(checkpoint.pipeline_steps);
}

// The number of this rank's part, and the name of the run, which rank 0 draws.
Checkpoint::Part TrainingCheckpoints::part_of_rank() {
  if (run_ == 0) {
    world_.together([&] {
      std::random_device random;
      const auto drawn =
          static_cast<int64_t>((uint64_t{random()} << 32U | random()) & INT64_MAX) | 1;
      run_ = static_cast<uint64_t>(world_.gather_all(drawn).front().toInt());
    });
  }
  return {.number = world_.place().self.value(),
          .count = world_.place().ranks * world_.place().replicas,
          .run = run_};
}

}  // namespace stagecraft
