#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/index.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/train/trainer.h"
#include "stagecraft/transport/fingerprint.h"

namespace stagecraft {

/// The ranks of a Trainer: all of them as threads of this process, or one rank of a world whose
/// other ranks make the same calls.
class TrainerWorld {
 public:
  /// ArgumentError for options that do not fit the pipe or the world.
  TrainerWorld(const Pipe& pipe, const Loss& loss, const TrainerOptions& options);

  int32_t replicas() const { return place_.replicas; }
  /// The number of ranks of one replica.
  int32_t num_ranks() const { return place_.ranks; }
  /// Whether the stage is trained in this process.
  bool has_stage(StageId stage) const;

  /// Runs a body that all ranks run together. An exception on one rank ends the body on all ranks,
  /// and afterwards all ranks can continue. Errors that every rank finds itself are better thrown
  /// outside of the body, because recovery takes time.
  void together(const std::function<void()>& body);

  // In `together` ---------------------------------------------------------------------------------

  /// One step of the pipeline, or its forwards. `all` has the microbatches of all replicas, replica
  /// by replica. Every rank gets all losses and weights.
  StepResult step(Microbatches all, bool measure_memory);
  StepResult eval(Microbatches all);
  /// The forwards of one replica's microbatches. Every rank gets the outputs.
  StepResult predict(Microbatches batch, OutputMode outputs);

  /// The values of the ranks of the first replica. If ranks are threads, one value for all.
  std::vector<c10::IValue> gather(c10::IValue own);
  /// The values of the ranks of all replicas.
  std::vector<c10::IValue> gather_all(c10::IValue own);
  /// Sends an update of pieces to all replicas (Runner::gather_weights).
  void gather_weights();
  /// With sharded weights. gather_whole gives them their elements until the next step,
  /// release_whole releases the elements.
  void gather_whole();
  void release_whole();
  /// Fits the lookahead of training and evaluation (Runner::fit_unshard_lookahead).
  MeasuredLookahead fit_unshard_lookahead();
  /// On rank 0: for each stage, what `of_stage` returns on the stage's rank. Empty on other ranks.
  std::vector<std::vector<at::Tensor>> collect(
      const std::function<std::vector<at::Tensor>(StageId)>& of_stage);
  /// The last step of this rank's replica that was not replayed as a graph.
  RecordedRun recorded_run();
  /// The share of the bubble in that step.
  double bubble_share();

  // At any time -----------------------------------------------------------------------------------

  /// The sharded parameters of this rank; null if they are whole.
  std::shared_ptr<ParameterShards> shards() const;
  const ReplicaPlace& place() const { return place_; }

  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

 private:
  const Placement& placement() const { return pipeline_->placement(); }
  Deadline deadline(int32_t times = 1) const;
  std::vector<at::Tensor> receive_from(Rank rank, StageId stage);
  void compare_trainers();
  void compare_weights();
  std::vector<c10::IValue> weight_checksums(std::span<const StageId> stages) const;
  std::vector<c10::IValue> checksums_before(const TrainerOptions& options) const;
  Microbatches own_share(Microbatches all) const;
  void share_buffers();

  Transport* transport_;  // null for threads
  Pipe pipe_;
  std::chrono::nanoseconds timeout_;
  Fingerprint fingerprint_;
  ShardKind shard_;
  /// The checksums of the weights of this rank's stages before they were sharded. Empty after
  /// weights were restored.
  std::vector<c10::IValue> checksums_;
  // Runners with a transport, Pipelines without. There are two, so that an evaluation does not
  // replace the recording of the last training step.
  std::unique_ptr<PipelineBase> pipeline_;
  std::unique_ptr<PipelineBase> evaluation_;
  ReplicaPlace place_;
  std::vector<at::Tensor> changed_buffers_;  // of this rank's stages, by their forwards
  bool changes_buffers_ = false;             // of any stage
  double bubble_share_ = 0;
  int64_t reported_runs_ = 0;  // steps that were run until bubble_share_ was computed
  bool has_agreed_ = false;
  bool must_recover_ = false;
};

}  // namespace stagecraft
