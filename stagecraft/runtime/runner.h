#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

class ParameterShards;
class Pipe;

/// One rank of a pipeline, over any transport. Every rank of the world has a runner and makes the
/// same calls. `Pipeline` (pipeline.h) runs all ranks in one process.
///
///   Runner runner(transport, ScheduleSource::named("1F1B", 2), std::move(stages), {.loss = mse});
///   runner.step({x}, {}, {}, {.microbatches = 4});               // on the rank of stage 0
///   auto result = runner.step({}, {}, y, {.microbatches = 4});   // on the rank of the last stage
///
/// Before the first step the ranks compare version, schedule, stages, ports, ties, seed and device
/// types. Before each step they compare the number of microbatches and of completed steps, whether
/// the step reduces gradients (StepOptions::reduce_grads), and how many are local. A mismatch is a
/// MetadataError on every rank, which names the ranks and the values that differ.
///
/// Gradients are added to the parameters' .grad, as in plain autograd. A step that fails on any
/// rank throws on every rank and names the first rank that failed: there as StageError or
/// TimeoutError, on other ranks as PeerError, which carries the first error. Everything that the
/// step had in flight is released, parameters that had no gradient before the step have none after
/// it, and the next step works.
class Runner : public PipelineBase {
 public:
  /// `stages` are those that the schedule places on this rank, in any order. The transport must
  /// outlive the runner. ArgumentError if stages, schedule, ports and ranks do not fit each other,
  /// or if the options have a second schedule source.
  Runner(Transport& transport, const ScheduleSource& source, std::vector<Stage> stages,
         PipelineOptions options = {});
  /// The rank's stages of a model that was split. Ports, ties and guards are those of the pipe,
  /// unless the options have their own.
  Runner(Transport& transport, const Pipe& pipe, PipelineOptions options = {});

  /// Recovers the world after a failed step. `step` and `eval` do so themselves if the last step of
  /// this runner failed, or that of a different runner which shares the transport. All ranks call
  /// it if some of them had not begun the failed step. Throws as Transport::recover does.
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

  /// The replica that this rank belongs to.
  int32_t replica() const;
  /// The recording of this rank's last step. (recorded_run has all ranks of its replica, on one
  /// clock.)
  const RankRecording& recording() const;

 private:
  class Impl;
};

}  // namespace stagecraft
