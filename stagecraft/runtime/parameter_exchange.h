#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/replica_reducer.h"
#include "stagecraft/runtime/stage_gathers.h"
#include "stagecraft/runtime/step_plan.h"
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Exchanges the parameters of a rank and their gradients with other ranks: sharded weights
/// (StageGathers), gradients of replicas (ReplicaReducer), and gradients of tied weights
/// (TiedWeights). Every wait ends after PipelineOptions::timeout with a TimeoutError.
///
///   start                             of a step
///   poll                              between actions: takes what has arrived, without waiting
///   wait_for_weights                  before an action computes
///   unshard, reshard, reduce, wait    the actions of these names
///   finish                            after the last action
///   commit                            when the step is complete on all ranks
class ParameterExchange {
 public:
  /// The arguments must outlive the object. `shards` may be null.
  ParameterExchange(Transport& transport, const ReplicaPlace& place, std::span<Stage> stages,
                    const Placement& placement, const PipelineOptions& options,
                    ParameterShards* shards, Recorder& recorder, ProgressMark& progress);

  /// The ranks that this rank exchanges gradients with. A rank may occur several times.
  std::vector<Rank> peers() const;

  void start(const StepPlan& plan);
  void poll() {
    reducer_->poll();
    gathers_.poll();
  }
  /// `slot` is a compute action, or an overlap and its parts; other actions do not wait. `offset`
  /// is the slot's place in the list.
  void wait_for_weights(std::span<const Action> slot, std::size_t offset);
  void unshard(StageId stage) { gathers_.unshard(stage); }
  void reshard(StageId stage);
  void reduce(StageId stage) { reducer_->reduce(stage, step_); }
  void wait_reduced(StageId stage);
  /// For a thread that runs several ranks: sends the gradients of tied weights before `finish`.
  void send_ties() { ties_.send(step_); }
  void finish();
  /// Keeps the gradients of the step.
  void commit();
  /// Called instead of finish or commit: restores the gradients of earlier steps, and resets those
  /// of parameters that had none before the step. REQUIRES that no rank that shares a parameter is
  /// still in the step.
  void abandon();

  /// Whether this rank waited for a different rank when an exception was thrown. The next call
  /// returns false.
  bool take_waiting() { return std::exchange(is_waiting_, false); }
  /// The parameters whose gradients are local, after a step that did not reduce them.
  int32_t num_local_grads() const { return reducer_->num_local(); }
  /// Whether weights are released between the actions of a step.
  bool releases_weights() const;
  /// The value with a copy of each weight that will be released: a tied weight that is sent would
  /// lose its elements when the stage is resharded.
  c10::IValue without_weights(const c10::IValue& output) const;
  /// Bytes of the parameters and of their existing gradients.
  int64_t bytes_held() const;

 private:
  template <typename Wait>
  void waiting(Wait&& wait);
  void note_missing_grads();

  const ReplicaPlace& place_;
  std::span<Stage> stages_;
  const PipelineOptions& options_;
  ProgressMark& progress_;
  ParameterShards* const shards_;
  TiedWeights ties_;
  const std::unique_ptr<ReplicaReducer> reducer_;
  StageGathers gathers_;

  uint64_t step_ = 0;
  bool is_training_ = true;
  bool is_waiting_ = false;
  std::vector<at::Tensor> had_no_grad_;  // parameters without a gradient at the begin of the step
};

}  // namespace stagecraft
