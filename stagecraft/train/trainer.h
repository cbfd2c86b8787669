#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
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

/// How a Trainer trains.
struct TrainerOptions {
  /// As in PipelineOptions.
  std::string schedule = "1F1B";
  std::optional<int32_t> ranks = std::nullopt;
  std::optional<ScheduleSource> source = std::nullopt;
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  uint64_t seed = 0;
  /// Threads inside operators, on each rank and for the optimizer.
  int32_t threads_per_rank = 1;

  /// Each update is of accumulate * microbatches microbatches, in so many steps of the pipeline.
  int32_t microbatches = 4;
  int32_t accumulate = 1;

  LearningRate learning_rate = {};
  AdamWOptions adamw = {};
  /// The norm of all gradients together is kept to this; 0: as it is.
  double clip = 1;
  /// Stages that run forward again instead of keeping activations (StageOptions::recompute).
  std::vector<int32_t> recompute = {};
  /// What eval() runs: the same parameters in a model captured for evaluation (no dropout), cut
  /// likewise. Without it, what is trained.
  std::optional<Pipe> evaluation = std::nullopt;

  /// This rank's end of a world, of which every rank has a trainer; null: all ranks are threads of
  /// this one. Must outlive the trainer.
  Transport* transport = nullptr;
  /// How many pipelines side by side, each with a share of every batch, in a world of as many ranks
  /// as all of them have. An update is of accumulate * replicas * microbatches microbatches then.
  int32_t replicas = 1;
};

/// What one update was like.
struct TrainStep {
  int64_t step = 0;      ///< how many there were, this one included
  double loss = 0;       ///< the mean over the batch, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double seconds = 0;       ///< by this rank's clock
  double bubble_share = 0;  ///< of all ranks' time, in the last step of the (first) pipeline
};

/// Trains a model that was cut: pipeline, AdamW, clipping, checkpoints.
///
///   Trainer trainer(pipe, loss, {.schedule = "1F1B", .microbatches = 8});
///   TrainStep now = trainer.step({inputs}, targets);
///   save_checkpoint("run", trainer.checkpoint());
///
/// With a fixed number of microbatches the losses do not depend on the number of stages nor on the
/// schedule, in no bit, as long as schedules run a stage's backwards in ascending order (those that
/// reverse it equal each other) and shared parameters are transmitted.
///
/// Ranks are threads, or with TrainerOptions::transport those of a world, in processes or threads:
///
///   Trainer trainer(pipe, loss, {.transport = &transport, .replicas = 2});
///
/// Then every rank makes a trainer from the same model with the same weights, and the same calls
/// with the same whole batch. It runs and updates the stages that the schedule puts on it, and
/// holds AdamW's moments of those alone; its weights of other stages are neither used nor kept up
/// to date. All ranks get the same results, and errors: a step that fails on one of them fails, and
/// changes nothing, on all, as Runner::step says. One replica has the bits of threads. Several have
/// the sums of as many microbatches in another order, and all of them the same weights; buffers
/// that forwards change are those of the first.
///
/// Belongs to one thread, whose number of threads inside operators it sets.
class Trainer {
 public:
  /// ArgumentError for options that do not fit each other or the pipe.
  Trainer(Pipe pipe, const Loss& loss, TrainerOptions options = {});
  ~Trainer();
  Trainer(Trainer&&) noexcept;
  Trainer& operator=(Trainer&&) noexcept;

  /// One update with one batch, which is cut along its rows. Error, before anything is updated,
  /// when gradients are not finite; otherwise throws as Pipeline::step does. After a throw the
  /// trainer is as before.
  TrainStep step(const Args& args, const c10::IValue& target, bool measure_memory = false);
  /// The same for a model that takes arguments by name. Without a target (None) the loss is a
  /// function of the output alone.
  TrainStep step(const Arguments& inputs, const c10::IValue& target, bool measure_memory = false);

  /// The mean loss over a batch of at least as many rows as replicas * microbatches, without
  /// dropout where TrainerOptions::evaluation is given. Leaves the model's buffers as they were.
  double eval_loss(const Args& args, const c10::IValue& target);
  double eval_loss(const Arguments& inputs, const c10::IValue& target);
  /// The outputs for a batch of at least as many rows as there are microbatches, merged. Every
  /// replica computes all of them.
  c10::IValue predict(const Args& args);
  c10::IValue predict(const Arguments& inputs);
  /// The same by microbatch, for outputs that cannot be merged, as a loss among them.
  std::vector<c10::IValue> predict_each(const Arguments& inputs);

  int64_t steps() const;
  const Pipe& pipe() const;
  /// Of one replica.
  int32_t num_ranks() const;
  /// In the order of the uncut model.
  const std::vector<ModelState>& states() const;
  /// What all ranks did in the last step, of this rank's replica; called by all ranks.
  /// ArgumentError before the first.
  RecordedRun recorded_run();

  /// All that it needs to go on, `notes` included. Shares the tensors: write it before the next
  /// step. Called by all ranks; rank 0 gets the tensors of all stages, and the others what
  /// save_checkpoint has nothing to write of.
  Checkpoint checkpoint(std::string notes = "null") const;
  /// Goes on where that one was, however that was cut. MetadataError, before anything is changed,
  /// when it is not of this model: names and shapes are compared, and the seed. Every rank restores
  /// the same.
  void restore(const Checkpoint& checkpoint);
  /// Called by all ranks: then rank 0's pipe has the weights and buffers of all stages, as to save
  /// them (state_dict.h). Where ranks are threads of this trainer it always has.
  void gather_weights();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
