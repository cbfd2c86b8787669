#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/tied_weight.h"

namespace stagecraft {

class Pipe;

/// Options of a Pipeline, for as long as it lives.
struct PipelineOptions {
  /// A builder's name; the stages are dealt out to `ranks` ranks as it says.
  std::string schedule = "1F1B";
  /// How many ranks, each of them a thread. Without it: one for each stage, or one for every two
  /// where the schedule wants two.
  std::optional<int32_t> ranks = std::nullopt;
  /// Any other schedule, instead of `schedule`; `ranks` is its own then.
  std::optional<ScheduleSource> source = std::nullopt;

  Loss loss = {};
  std::optional<Ports> ports = std::nullopt;  ///< without it, a chain
  /// Weights of which several stages hold a copy. (Stages that hold one and the same tensor need no
  /// entry: its gradients add up in it, in the order in which the ranks come to it.)
  std::vector<TiedWeight> ties = {};
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// Of random operators in stages. Without it, the seed of the process's CPU generator when the
  /// pipeline is made.
  std::optional<uint64_t> seed = std::nullopt;
  /// Threads inside operators, for each rank. Without it: what the thread that makes the pipeline
  /// has, divided among the ranks. Results can depend on it in their last bits. (One rank has no
  /// thread of its own and leaves the caller's number alone.)
  std::optional<int32_t> threads_per_rank = std::nullopt;
  /// A send ends when its receive is posted, and is waited for: what the strictest network does.
  bool zero_buffering = false;
};

/// A pipeline in one process: every rank is a thread, nothing has to be launched.
///
///   std::vector<Stage> stages = ...;
///   Pipeline pipeline(std::move(stages), {.schedule = "1F1B", .ranks = 2, .loss = mse});
///   StepResult r = pipeline.step({x}, {}, y, {.microbatches = 4});
///   optimizer.step();
///
/// Stages run on the ranks' threads, never two forwards or backwards of one stage at once; what
/// they share must be safe to share. The caller's thread state (autocast, ...) holds on them too.
/// With one rank there are no threads: stages run on the caller's.
///
/// A step that fails throws what the first failing rank threw, StageError or TimeoutError, when all
/// ranks have ended; then the pipeline is as before it, parameters that had no gradient included.
/// (Gradients that were there from earlier steps may hold a part of the failed one.)
///
/// Belongs to one thread at a time.
class Pipeline {
 public:
  /// All stages of the model, in any order. ArgumentError when stages, ranks, schedule and ports do
  /// not fit each other.
  explicit Pipeline(std::vector<Stage> stages, PipelineOptions options = {});
  /// All stages of a model that was cut, with its ports and ties, which the options need not have.
  explicit Pipeline(const Pipe& pipe, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Trains on a batch: forward and backward of all its microbatches. ArgumentError for a batch
  /// that cannot be cut or a number of microbatches that the schedule cannot have, where gradients
  /// are switched off, and where there is no loss, neither here nor given to add_loss by a stage.
  StepResult step(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  /// The same for a batch in microbatches.
  StepResult step(Microbatches batch, const StepOptions& options = {});

  /// The forwards alone, without gradients: nothing is kept, gradients and random numbers of later
  /// steps are not touched. The loss is computed where a target is given.
  StepResult eval(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  StepResult eval(Microbatches batch, const StepOptions& options = {});

  /// How many steps trained it, on which random numbers depend: to go on where another pipeline
  /// was, set what that one had.
  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

  int32_t num_ranks() const;
  int32_t num_stages() const;
  const Placement& placement() const;
  Stage& stage(StageId stage);
  const Stage& stage(StageId stage) const;
  /// "own schedule" for one that has no name.
  const std::string& schedule_name() const;
  /// All that the stages train, stage by stage, for an optimizer; a tensor comes once.
  std::vector<at::Tensor> parameters() const;
  /// Called on the ranks' threads, by several at once.
  Callbacks& callbacks();

  /// What the ranks did in the last step, a failed one too, and what it took.
  /// ArgumentError before the first.
  Recording recording() const;
  StepReport report() const;

  /// What a step of so many microbatches will hold at its peak, as large as those of the last step
  /// that had StepOptions::measure_memory. ArgumentError before one.
  MemoryEstimate peak_memory_estimate(int32_t microbatches) const;
  /// What that step measured, by stage; empty before one.
  std::span<const StageMemory> stage_memory() const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
