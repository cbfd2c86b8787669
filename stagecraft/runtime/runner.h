#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

class Pipe;

/// One rank of a pipeline, over any transport. Every rank of the world has a runner and makes the
/// same calls. `Pipeline` (pipeline.h) runs all ranks in one process.
///
///   Runner runner(transport, ScheduleSource::named("1F1B", 2), std::move(stages), {.loss = mse});
///   runner.step({x}, {}, {}, {.microbatches = 4});               // on the rank of stage 0
///   auto result = runner.step({}, {}, y, {.microbatches = 4});   // on the rank of the last stage
///
/// Before the first step the ranks compare version, schedule, stages, ports, ties, seed and device
/// types. Before each step they compare the number of microbatches and of completed steps. A
/// mismatch is a MetadataError on every rank, which names the ranks and the values that differ.
///
/// Gradients are added to the parameters' .grad, as in plain autograd. A step that fails on any
/// rank throws on every rank and names the first rank that failed: there as StageError or
/// TimeoutError, on other ranks as PeerError, which carries the first error. Everything that the
/// step had in flight is released, parameters that had no gradient before the step have none after
/// it, and the next step works.
///
/// Not thread-safe: all calls come from the rank's thread.
class Runner {
 public:
  /// `stages` are those that the schedule places on this rank, in any order. The transport must
  /// outlive the runner. ArgumentError if stages, schedule, ports and ranks do not fit each other,
  /// or if the options have a second schedule source.
  Runner(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
         PipelineOptions options = {});
  /// The rank's stages of a model that was split. Ports, ties and guards are those of the pipe,
  /// unless the options have their own.
  Runner(Transport& transport, const Pipe& pipe, PipelineOptions options = {});
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Trains on a batch: forward and backward of all its microbatches. Pass each argument on the
  /// ranks of the stages that take it, and targets on the rank of the last stage. Results are
  /// returned there and on ranks whose options have `everywhere`.
  ///
  /// ArgumentError for a batch that cannot be split, for a number of microbatches that the schedule
  /// does not support, and if gradients are disabled. The other ranks then throw, too.
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
  /// the number that the earlier run had, on all ranks.
  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

  /// Recovers the world after a failed step. `step` and `eval` do so themselves if the last step of
  /// this runner failed. All ranks call it if some of them had not begun the failed step, or if
  /// several runners share a transport. Throws as Transport::recover does.
  void recover();

  Callbacks& callbacks();
  const Placement& placement() const;
  /// ArgumentError for a stage that is not on this rank.
  Stage& stage(StageId stage);
  /// The parameters of this rank's stages, for an optimizer. A tensor occurs once.
  std::vector<at::Tensor> parameters() const;
  /// The replica that this rank belongs to.
  int32_t replica() const;
  /// What this rank did in its last step.
  const RankRecording& recording() const;

  // Called by all ranks --------------------------------------------------------------------------

  /// What all ranks of this replica did in the last step, on one clock, with everything else that a
  /// report needs (report/save_report.h). ArgumentError before the first step.
  RecordedRun recorded_run();
  /// The peak memory of a step with that number of microbatches, each as large as in the last step
  /// with StepOptions::measure_memory. ArgumentError before such a step.
  MemoryEstimate peak_memory_estimate(int32_t microbatches);

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
