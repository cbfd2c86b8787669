#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

class Pipe;

/// A pipeline in one process: every rank is a thread, and there is nothing to launch. `Runner`
/// (runner.h) is the same for a rank of a world.
///
///   std::vector<Stage> stages = ...;
///   Pipeline pipeline(std::move(stages), {.schedule = "1F1B", .ranks = 2, .loss = mse});
///   StepResult r = pipeline.step({x}, {}, y, {.microbatches = 4});
///   optimizer.step();
///
/// A stage runs on the thread of its rank, one forward or backward at a time. Objects that several
/// stages share must be thread-safe. The caller's thread state (autocast, ...) is set on the
/// ranks' threads, too. With one rank there are no threads: stages run on the caller's.
///
/// A failed step throws the error of the first rank that failed, a StageError or TimeoutError,
/// after all ranks have ended. The pipeline is then as before the step: parameters that had no
/// gradient have none. (Gradients of earlier steps may contain a part of the failed step.)
///
/// Not thread-safe.
class Pipeline {
 public:
  /// All stages of the model, in any order. ArgumentError if stages, ranks, schedule and ports do
  /// not fit each other.
  explicit Pipeline(std::vector<Stage> stages, PipelineOptions options = {});
  /// All stages of a model that was split. Ports, ties and guards are those of the pipe, unless the
  /// options have their own.
  explicit Pipeline(const Pipe& pipe, PipelineOptions options = {});
  ~Pipeline();
  Pipeline(Pipeline&&) noexcept;
  Pipeline& operator=(Pipeline&&) noexcept;

  /// Trains on a batch: forward and backward of all its microbatches. ArgumentError for a batch
  /// that cannot be split, for a number of microbatches that the schedule does not support, if
  /// gradients are disabled, and if there is no loss, neither in the options nor added by a stage
  /// (add_loss).
  StepResult step(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  /// The same for a batch in microbatches.
  StepResult step(Microbatches batch, const StepOptions& options = {});

  /// The forwards alone, without gradients. Nothing is kept, and gradients and random numbers of
  /// later steps are unchanged. The loss is computed if a target is given.
  StepResult eval(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  StepResult eval(Microbatches batch, const StepOptions& options = {});

  /// The number of completed training steps, on which random numbers depend. To continue a run, set
  /// the number that the earlier pipeline had.
  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

  int32_t num_ranks() const;
  int32_t num_stages() const;
  const Placement& placement() const;
  Stage& stage(StageId stage);
  const Stage& stage(StageId stage) const;
  /// "own schedule" for a schedule without a name.
  const std::string& schedule_name() const;
  /// The parameters of all stages, stage by stage, for an optimizer. A tensor occurs once.
  std::vector<at::Tensor> parameters() const;
  /// Called on the ranks' threads, by several at a time.
  Callbacks& callbacks();

  /// What the ranks did in the last step, even if it failed, and how long it took. ArgumentError
  /// before the first step.
  Recording recording() const;
  StepReport report() const;
  /// The recording with everything else that a report needs (report/save_report.h).
  RecordedRun recorded_run() const;

  /// The peak memory of a step with that number of microbatches, each as large as in the last step
  /// with StepOptions::measure_memory. ArgumentError before such a step.
  MemoryEstimate peak_memory_estimate(int32_t microbatches) const;

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
