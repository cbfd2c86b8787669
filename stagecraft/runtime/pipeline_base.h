#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/stage.h"

namespace stagecraft {

class ParameterShards;
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
  /// (report/save_report.h). Waits for the devices. With Runners, called by all ranks of the world.
  /// ArgumentError before the first step.
  RecordedRun recorded_run() const;
  /// Of that run: what the ranks did, and how long it took.
  Recording recording() const;
  StepReport report() const;
  /// The peak memory of a step with that number of microbatches, each as large as in the last step
  /// with StepOptions::measure_memory. With Runners, called by all ranks of the world.
  /// ArgumentError before such a step.
  MemoryEstimate peak_memory_estimate(int32_t microbatches) const;

  // Ranks of a world ------------------------------------------------------------------------------
  // The ranks of a Pipeline are threads of one replica: it has nothing to recover, gather or shard.
  // The calls about the lookahead are then an ArgumentError.

  /// Recovers the world after a failed step. `step` and `eval` do so themselves if the last step of
  /// this object failed, or that of a different one which shares the transport. All ranks call it
  /// if some of them had not begun the failed step. Throws as Transport::recover does.
  void recover();

  /// With PipelineOptions::shard: the sharded parameters of this rank. Null without it.
  ///
  ///   for (const auto& unit : runner.shards()->units()) {
  ///     for (std::size_t i = 0; i < unit->segments().size(); ++i) {
  ///       update(unit->value(i), unit->grad(i));
  ///     }
  ///   }
  ///   runner.gather_weights();
  ///   runner.shards()->zero_grad();
  const std::shared_ptr<ParameterShards>& shards() const;
  /// Sends an update of the pieces to all replicas. With ShardKind::kParameters it does nothing:
  /// the next step gathers the pieces. Called by all ranks, between steps. If it throws, it can be
  /// called again after a recovery.
  void gather_weights();
  /// Calls `body` while all parameters of this rank have their elements, on all ranks together,
  /// between steps. Changes that `body` makes to parameters take effect. All replicas must make the
  /// same changes.
  void with_whole_parameters(const std::function<void()>& body);

  /// With ShardKind::kParameters, after a step: finds the smallest lookahead of each rank that
  /// costs no time, and unshards that many stages ahead in later steps and evals
  /// (LowerOptions::unshard_lookahead). Times of computations are those of the last step; gathers
  /// are measured here, a few of each stage. Results of steps keep their bits. Called by all ranks,
  /// between steps; all get the same result.
  ///
  /// ArgumentError without sharded parameters, unless the last step trained, and for a schedule
  /// that contains UNSHARD or RESHARD itself. If it throws, nothing has changed.
  MeasuredLookahead fit_unshard_lookahead();
  /// Unshards that many stages ahead in later steps and evals, one number a rank, from 1 to
  /// LowerOptions::max_active_stages (ArgumentError). Called by all ranks, between steps, with the
  /// same numbers: the next step compares them.
  void set_unshard_lookahead(const std::vector<int32_t>& lookahead);

  /// The replica of this process's ranks; 0 if there is only one.
  int32_t replica() const;

 protected:
  explicit PipelineBase(std::unique_ptr<PipelineCore> core);

  std::unique_ptr<PipelineCore> core_;
};

}  // namespace stagecraft
