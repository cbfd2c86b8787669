#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

class PipelineCore;

/// The interface that a Pipeline, which has all ranks, and a Runner, which is one rank, have in
/// common. Every rank of a world makes the same calls. Not thread-safe.
class PipelineBase {
 public:
  virtual ~PipelineBase();
  PipelineBase(PipelineBase&&) noexcept;
  PipelineBase& operator=(PipelineBase&&) noexcept;

  /// Trains on a batch: forward and backward of all its microbatches. With a Runner, pass each
  /// argument on the ranks of the stages that take it, and targets on the rank of the last stage.
  /// Results are returned there and on ranks whose options have `everywhere`.
  ///
  /// ArgumentError for a batch that cannot be split, for a number of microbatches that the schedule
  /// does not support, and if gradients are disabled; in a Pipeline also if there is no loss,
  /// neither in the options nor added by a stage (add_loss). MetadataError for inputs that break a
  /// guard of an exported model. If one rank throws, all ranks throw.
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
  /// the number that the earlier run had.
  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

  const Placement& placement() const;
  /// The number of ranks of one replica.
  int32_t num_ranks() const;
  int32_t num_stages() const;
  /// ArgumentError for a stage that is not in this process.
  Stage& stage(StageId stage);
  const Stage& stage(StageId stage) const;
  /// "own schedule" for a schedule without a name.
  const std::string& schedule_name() const;
  /// The parameters of the stages in this process, stage by stage, for an optimizer. A tensor
  /// occurs once.
  std::vector<at::Tensor> parameters() const;
  /// Handlers and observers of actions. They are called on the ranks' threads, several at a time.
  Callbacks& callbacks();

  /// How many steps and evals were run and how many were replayed as graphs
  /// (PipelineOptions::graphs).
  LaunchCounts launches() const;

  /// The recording of the last step, even if it failed, with everything else that a report needs
  /// (report/save_report.h). Waits for the devices. ArgumentError before the first step.
  RecordedRun recorded_run() const;
  /// The peak memory of a step with that number of microbatches, each as large as in the last step
  /// with StepOptions::measure_memory. ArgumentError before such a step.
  MemoryEstimate peak_memory_estimate(int32_t microbatches) const;

 protected:
  explicit PipelineBase(std::unique_ptr<PipelineCore> core);

  std::unique_ptr<PipelineCore> core_;
};

}  // namespace stagecraft
