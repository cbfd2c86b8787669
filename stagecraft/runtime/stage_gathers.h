#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/shard/all_gather.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One rank's gathers of sharded weights (ShardKind::kParameters) in a step. With other kinds, and
/// without shards, it does nothing.
///
///   start     of a step: nothing is unsharded
///   unshard   allocates the weights of a stage and posts the transfers of its pieces. The
///             transport's threads carry them while the rank computes
///   poll      between actions: places the pieces that have arrived (AllGather::advance)
///   wait      before a computation of the stage: until its weights are there. A stage that the
///             schedule does not unshard is unsharded here
///   reshard   releases the weights
///   finish    after the last action: releases what is left, and waits for sends
class StageGathers {
 public:
  /// The arguments must outlive it; `shards` may be null.
  StageGathers(Transport& transport, ParameterShards* shards, Recorder& recorder,
               ProgressMark& progress);

  void start(uint64_t step);
  void unshard(StageId stage);
  void poll();
  /// `offset`: of the action that waits, for the recording.
  void wait(StageId stage, std::size_t offset, Deadline deadline);
  /// ArgumentError if a weight was written in place.
  void reshard(StageId stage, Deadline deadline);
  void finish(Deadline deadline);
  /// Called instead of finish: releases all weights.
  void abandon();

 private:
  /// A unit in a step.
  struct Gathered {
    ShardUnit* unit = nullptr;
    int32_t users = 0;                               // stages that are unsharded
    int32_t gathers = 0;                             // so far in the step
    std::optional<AllGather> gather = std::nullopt;  // in flight
  };

  bool is_on() const { return !units_.empty(); }
  bool is_active(StageId stage) const;
  Gathered& entry_of(const ShardUnit& unit) {
    return units_[static_cast<std::size_t>(unit.number())];
  }
  void keep_sends(Gathered& entry);

  Transport& transport_;
  ParameterShards* const shards_;
  Recorder& recorder_;
  ProgressMark& progress_;
  uint64_t step_ = 0;
  std::vector<Gathered> units_;
  std::vector<StageId> active_;
  std::vector<PendingPtr> sends_;
};

}  // namespace stagecraft
