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
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/train/adamw.h"
#include "stagecraft/train/checkpoint.h"
#include "stagecraft/train/learning_rate.h"
#include "stagecraft/train/model_state.h"
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
};

/// What one update was like.
struct TrainStep {
  int64_t step = 0;      ///< how many there were, this one included
  double loss = 0;       ///< the mean over the batch, before the update
  double grad_norm = 0;  ///< before clipping
  double learning_rate = 0;
  double seconds = 0;
  double bubble_share = 0;  ///< of all ranks' time, in the last step of the pipeline
};

/// Trains a model that was cut: pipeline, AdamW, clipping, checkpoints.
///
///   Trainer trainer(pipe, loss, {.schedule = "1F1B", .microbatches = 8});
///   TrainStep now = trainer.step({inputs}, targets);
///   save_checkpoint("run", trainer.checkpoint());
///
/// With a fixed number of microbatches the losses do not depend on the number of stages nor on the
/// schedule, in no bit, as long as schedules run a stage's backwards in ascending order (those that
/// reverse it equal each other) and shared parameters are transmitted. Ranks are threads.
///
/// Belongs to one thread, whose number of threads inside operators it sets.
class Trainer {
 public:
  /// ArgumentError for options that do not fit each other or the pipe.
  Trainer(Pipe pipe, Loss loss, TrainerOptions options = {});
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

  /// The mean loss over a batch, without dropout where TrainerOptions::evaluation is given. Leaves
  /// the model's buffers as they were.
  double eval_loss(const Args& args, const c10::IValue& target);
  double eval_loss(const Arguments& inputs, const c10::IValue& target);
  /// The outputs for a batch of at least as many rows as there are microbatches, merged.
  c10::IValue predict(const Args& args);
  c10::IValue predict(const Arguments& inputs);
  /// The same by microbatch, for outputs that cannot be merged, as a loss among them.
  std::vector<c10::IValue> predict_each(const Arguments& inputs);

  int64_t steps() const;
  const Pipe& pipe() const;
  const Pipeline& pipeline() const;
  /// In the order of the uncut model.
  const std::vector<ModelState>& states() const;

  /// All that it needs to go on, `notes` included. Shares the tensors: write it before the next
  /// step.
  Checkpoint checkpoint(std::string notes = "null") const;
  /// Goes on where that one was, however that was cut. MetadataError, before anything is changed,
  /// when it is not of this model: names and shapes are compared, and the seed.
  void restore(const Checkpoint& checkpoint);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
