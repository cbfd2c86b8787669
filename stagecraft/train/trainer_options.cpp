#include "stagecraft/train/trainer_options.h"

#include <cstdint>

#include "stagecraft/base/check.h"
#include "stagecraft/train/learning_rate.h"

namespace stagecraft {

void check(const TrainerOptions& options, const Pipe& pipe, const Loss& loss) {
  check(options.learning_rate);
  require<ArgumentError>(static_cast<bool>(loss), "a Trainer needs a loss");
  require<ArgumentError>(
      options.microbatches >= 1 && options.accumulate >= 1,
      "expected at least one microbatch and one step for each update, got {} and {}",
      options.microbatches, options.accumulate);
  require<ArgumentError>(options.clip >= 0, "expected a norm of at least 0 to clip at, got {}",
                         options.clip);
  require<ArgumentError>(options.threads_per_rank >= 1,
                         "expected at least one thread for each rank, got {}",
                         options.threads_per_rank);
  require<ArgumentError>(options.shard == ShardKind::kNone || options.transport != nullptr,
                         "sharded {} need replicas: set TrainerOptions::transport and replicas",
                         to_string(options.shard));
  require<ArgumentError>(options.replicas == 1 || options.transport != nullptr,
                         "{} replicas need a world: set TrainerOptions::transport",
                         options.replicas);
  for (const int32_t stage : options.recompute) {
    require<ArgumentError>(stage >= 0 && stage < pipe.num_stages(),
                           "recompute: expected stages from 0 to {}, got {}", pipe.num_stages() - 1,
                           stage);
  }
}

}  // namespace stagecraft
