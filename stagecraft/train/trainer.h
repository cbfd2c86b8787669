#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/shard_kind.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/train/adamw.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/learning_rate.h"
#include "stagecraft/train/model_state.h"
#include "stagecraft/transport/transport.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Options of a Trainer.
struct TrainerOptions {
  /// As in PipelineOptions.
  std::string schedule = "1F1B";
  std::optional<int32_t> ranks = std::nullopt;
  std::optional<ScheduleSource> source = std::nullopt;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  uint64_t seed = 0;
  /// Threads inside operators, on each rank and for the optimizer.
  int32_t threads_per_rank = 1;
  /// As in PipelineOptions. Evaluations are not replayed.
  GraphMode graphs = GraphMode::kAuto;

  /// An update has `accumulate` steps of the pipeline with `microbatches` microbatches each.
  int32_t microbatches = 4;
  int32_t accumulate = 1;

  LearningRate learning_rate = {};
  AdamWOptions adamw = {};
  /// Upper limit for the norm of all gradients; 0: no limit.
  double clip = 1;
  /// Stages that run forward again instead of keeping activations (StageOptions::recompute).
  std::vector<int32_t> recompute = {};
  /// The model for evaluation: the same parameters, captured without dropout, with the same split.
  /// By default the trained model.
  std::optional<Pipe> evaluation = std::nullopt;

  /// This rank's transport, which must outlive the trainer. Every rank of its world has a trainer.
  /// Null: all ranks are threads of this trainer.
  Transport* transport = nullptr;
  /// The number of pipelines that train the model, each with a share of every batch. The world has
  /// the ranks of all of them. An update has accumulate * replicas * microbatches microbatches.
  int32_t replicas = 1;
  /// What the replicas shard (PipelineOptions::shard). Losses and weights have the same bits with
  /// every kind. A parameter that is sharded (ShardKind::kParameters) has its elements in steps,
  /// and after gather_weights until the next step. docs/sharding.md.
  ShardKind shard = ShardKind::kNone;
  /// Modules whose parameters are sharded as units of their own (PipelineOptions::shard_units).
  std::vector<std::string> shard_units = {};
};

/// The result of one update.
struct TrainStep {
  int64_t step = 0;      ///< the number of updates, including this one
  double loss = 0;       ///< the mean over the batch, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double seconds = 0;       ///< on this rank's clock
  double bubble_share = 0;  ///< of the time of all ranks, in the last step of the (first) pipeline
                            ///< that was not replayed as a graph
};

/// Trains a model that was split: pipeline, AdamW, clipping, checkpoints.
///
///   Trainer trainer(pipe, loss, {.schedule = "1F1B", .microbatches = 8});
///   TrainStep now = trainer.step({inputs}, targets);
///   save_checkpoint("run", trainer.checkpoint());
///
/// With a fixed number of microbatches, losses are bitwise equal for any number of stages and any
/// schedule, if shared parameters are transmitted and the schedules run the backwards of a stage in
/// ascending order. (Schedules with the reverse order are equal to each other.)
///
/// Ranks are threads, or, with TrainerOptions::transport, the ranks of a world:
///
///   Trainer trainer(pipe, loss, {.transport = &transport, .replicas = 2});
///
/// Then every rank creates a trainer from the same model with the same weights, and makes the same
/// calls with the same whole batch. A rank runs and updates the stages that the schedule places on
/// it, and holds AdamW's moments of those stages only. Its weights of other stages are neither used
/// nor updated. All ranks get the same results. A step that fails on one rank fails on all, and
/// changes nothing. One replica gives the same bits as threads. Several replicas add the gradients
/// of the microbatches in a different order. All replicas have the same weights, and the buffers
/// that forwards change are those of the first.
///
/// Not thread-safe. Sets the number of threads inside operators for the constructing thread.
class Trainer {
 public:
  /// ArgumentError for options that do not fit each other or the pipe.
  Trainer(Pipe pipe, const Loss& loss, TrainerOptions options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// One update with one batch, which is split along its rows. Error, before anything is updated,
  /// if gradients are not finite; otherwise throws as Pipeline::step does. An exception leaves the
  /// trainer unchanged.
  TrainStep step(const Args& args, const c10::IValue& target, bool measure_memory = false);
  /// The same for a model with arguments by name. Without a target (None), the loss is a function
  /// of the output alone.
  TrainStep step(const Arguments& inputs, const c10::IValue& target, bool measure_memory = false);

  /// The mean loss over a batch with at least replicas * microbatches rows, without dropout if
  /// TrainerOptions::evaluation is set. The model's buffers are unchanged.
  double eval_loss(const Args& args, const c10::IValue& target);
  double eval_loss(const Arguments& inputs, const c10::IValue& target);
  /// The merged outputs for a batch with at least as many rows as microbatches. Every replica
  /// computes all of them.
  c10::IValue predict(const Args& args);
  c10::IValue predict(const Arguments& inputs);
  /// The outputs by microbatch, for outputs that cannot be merged, such as a loss.
  std::vector<c10::IValue> predict_each(const Arguments& inputs);

  int64_t steps() const;
  const Pipe& pipe() const;
  /// The ranks of one replica.
  int32_t num_ranks() const;
  /// In the order of the unsplit model.
  const std::vector<ModelState>& states() const;
  /// The recording of all ranks of this replica in the last step. Called by all ranks.
  /// ArgumentError before the first step.
  RecordedRun recorded_run();

  /// With ShardKind::kParameters, after a step: finds from the times of the last step, and from
  /// gathers that are measured here, the smallest number of stages that each rank has to unshard
  /// ahead for a step to take no longer. Later steps and evaluations unshard that many. Losses and
  /// weights keep their bits. Called by all ranks. ArgumentError as from
  /// Runner::fit_unshard_lookahead.
  MeasuredLookahead fit_unshard_lookahead();

  /// Everything that is needed to continue, with `notes`. It shares the tensors: save it before the
  /// next step. Called by all ranks. Rank 0 gets the tensors of all stages. On other ranks
  /// Checkpoint::is_elsewhere is set. If replicas are sharded, every rank gets its own part
  /// (Checkpoint::part), and all ranks save theirs into the same folder.
  Checkpoint checkpoint(std::string notes = "null") const;
  /// Continues from a checkpoint of any split of the model. MetadataError, before anything is
  /// changed, if names, shapes or the seed differ. Every rank restores the same checkpoint.
  void restore(const Checkpoint& checkpoint);
  /// Bytes that this rank holds for training: parameters and buffers of its stages, gradients, and
  /// the optimizer's state.
  struct Memory {
    int64_t parameters = 0;
    int64_t gradients = 0;
    int64_t optimizer = 0;
  };
  Memory memory() const;
  /// Releases the weights of stages that are not on this rank. They are neither used nor updated.
  /// The program must not use them: no other rank of this process may be made from the same pipe.
  /// gather_weights gives rank 0 their elements again.
  void release_other_stages();
  /// Copies the weights and buffers of all stages to the pipe of rank 0, for saving them
  /// (state_dict.h). Called by all ranks. Ranks that are threads of this trainer share one pipe, so
  /// nothing is copied.
  void gather_weights();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
