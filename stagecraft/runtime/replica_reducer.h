#pragma once

#include <cstdint>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/index.h"

namespace stagecraft {

/// One rank's part of the reduction of gradients over the replicas. Gradients are added in the
/// order of the replicas, so that all replicas have the same bits. The gradients of a stage are
/// sent when they are complete, while other stages still compute:
///
///   start        sets the gradients of earlier steps aside, or a copy of them if they are local
///   reduce       after the last gradient of a stage: sends the stage's gradients
///   poll         between actions: adds gradients that have arrived, without waiting
///   wait         where the schedule waits for the reduction of a stage
///   finish       waits for the rest; the sums of this step are there
///   add_earlier  when the step is complete on all ranks: adds the gradients of earlier steps
class ReplicaReducer {
 public:
  ReplicaReducer() = default;
  virtual ~ReplicaReducer() = default;
  ReplicaReducer(const ReplicaReducer&) = delete;
  ReplicaReducer& operator=(const ReplicaReducer&) = delete;

  /// The number of parameters whose gradients are local.
  virtual int32_t num_local() const = 0;

  /// Without `reduces`, `reduce` and `finish` send nothing. If it throws, for example because there
  /// is no memory for the copies, nothing has changed.
  virtual void start(bool reduces) = 0;
  virtual void reduce(StageId stage, uint64_t step) = 0;
  virtual void poll() = 0;
  /// Waits until the gradients that were sent with this stage are reduced.
  virtual void wait(StageId stage, Deadline deadline) = 0;
  /// Also reduces the stages for which `reduce` was not called.
  virtual void finish(uint64_t step, Deadline deadline) = 0;
  virtual void add_earlier() = 0;
  /// Called instead of finish or add_earlier: restores the gradients of earlier steps.
  virtual void abandon() = 0;
};

}  // namespace stagecraft
