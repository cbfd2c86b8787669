#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/util/FunctionRef.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/gathered_rank.h"
#include "stagecraft/runtime/launch/launch_counts.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/step_counter.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

class Pipe;

/// The options for a Pipeline or Runner of a pipe: its ports, ties and guards are added.
PipelineOptions options_for(const Pipe& pipe, PipelineOptions options);
/// A stage of a pipe, with PipelineOptions::stage_options.
Stage build_stage(const Pipe& pipe, StageId stage, const PipelineOptions& options);
/// For stages that the caller has built: ArgumentError if PipelineOptions::stage_options is set.
void require_no_stage_options(const PipelineOptions& options);

/// Sets the number of threads inside operators for the calling thread.
void set_operator_threads(int32_t threads);

class StepDriver;

/// The part of a Pipeline or Runner that does not depend on the rank. The threads of a Pipeline
/// share it, so they exchange nothing before and after a step.
class PipelineCore {
 public:
  /// ArgumentError for options that do not fit each other or the schedule.
  PipelineCore(PipelineOptions given, ScheduleSource schedules);
  virtual ~PipelineCore() = default;
  PipelineCore(const PipelineCore&) = delete;
  PipelineCore& operator=(const PipelineCore&) = delete;

  /// Runs a step, or its forwards.
  virtual StepResult run(c10::function_ref<Microbatches()> make_batch, const StepOptions& step,
                         bool is_training) = 0;
  /// The recording of the last step, of all ranks of a replica.
  virtual RecordedRun recorded_run() = 0;
  /// How steps were executed.
  virtual LaunchCounts launches() const { return {.run = static_cast<int64_t>(counter.last_id())}; }
  /// The ranks in this process.
  virtual std::span<const std::unique_ptr<StepDriver>> drivers() const = 0;

  // Calls of PipelineBase that ranks of a world make together. By default there is one replica, and
  // its ranks are threads: nothing is sharded, and a step recovers before it throws.
  virtual void recover() {}
  virtual void gather_weights() {}
  virtual void with_whole_parameters(const std::function<void()>& body) { body(); }
  virtual MeasuredLookahead fit_unshard_lookahead();
  virtual void set_unshard_lookahead(const std::vector<int32_t>& lookahead);

  const Placement& placement() const { return source.placement(); }

  const PipelineOptions options;
  ScheduleSource source;  ///< its placement stays; a Runner may change the lookahead of its steps
  const Ports ports;
  const StageGraph graph;
  const uint64_t seed;
  Callbacks callbacks;
  StepCounter counter;
  std::shared_ptr<const Schedule> schedule;  ///< of the last step

 protected:
  /// Calls PipelineOptions::check_arguments for the microbatches.
  void check_inputs(const Microbatches& batch) const;
  /// Sets `schedule`. Throws as ScheduleSource does.
  void choose_schedule(const Microbatches& batch, const StepOptions& step, bool is_training);
  /// The step with the schedule that was chosen. The arguments must outlive the plan; `meter` may
  /// be null.
  StepPlan plan(const Microbatches& batch, const StepOptions& step, bool is_training,
                MemoryMeter* meter) const;
  /// ArgumentError before the first step.
  void require_step() const;
  /// ArgumentError unless the parameters of the ranks are sharded.
  void require_sharded_parameters() const;
  /// The last step, from the recordings of all ranks of a replica, by rank.
  RecordedRun merge(std::vector<GatheredRank> ranks) const;
};

/// One rank of a pipeline: its stages, their wiring, and the executor of its action lists.
class StepDriver {
 public:
  /// `stages` are those that the schedule places on the rank, in any order. `core` and `transport`
  /// must outlive the driver. ArgumentError if stages, schedule, ports and ranks do not fit.
  StepDriver(PipelineCore& core, Transport& transport, std::vector<Stage> stages);
  StepDriver(const StepDriver&) = delete;
  StepDriver& operator=(const StepDriver&) = delete;

  const ReplicaPlace& place() const { return place_; }
  Executor& executor() { return executor_; }
  std::span<const Stage> stages() const { return stages_; }
  bool has_last_stage() const { return !stages_.empty() && stages_.back().is_last(); }
  /// Null for a stage that is not on this rank.
  Stage* find_stage(StageId stage);

  /// The sharded parameters of the rank; null if they are whole.
  const std::shared_ptr<ParameterShards>& shards() const { return shards_; }

  /// Releases tensors that the stages keep from step to step. REQUIRES that no stage computes.
  void release_kept();

  /// Called when the step is complete on all ranks: keeps its gradients and its measured memory.
  void commit(bool is_training);

  /// The data of the rank's last step that a report needs. GatheredRank::met is the time of the
  /// call. Waits for the device.
  GatheredRank recorded();

 private:
  ReplicaPlace place_;
  std::vector<Stage> stages_;
  std::shared_ptr<ParameterShards> shards_;
  Wiring wiring_;
  Executor executor_;
  std::vector<StageMemory> memory_;  // by stage of the rank; of the last step that measured it
};

}  // namespace stagecraft
