#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

class Pipe;

/// One rank of a pipeline, over any transport. Every rank of the world has a runner and makes the
/// same calls. `Pipeline` (pipeline.h) runs all ranks in one process.
///
///   Runner runner(transport, std::move(stages), {.schedule = "1F1B", .loss = mse});
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
  /// `stages` are those that the schedule places on this rank, in any order; at least one. The
  /// transport must outlive the runner. ArgumentError if stages, schedule, ports and ranks do not
  /// fit each other.
  Runner(Transport& transport, std::vector<Stage> stages, PipelineOptions options = {});
  /// The rank's stages of a model that was split. Ports, ties and guards are those of the pipe,
  /// unless the options have their own.
  Runner(Transport& transport, const Pipe& pipe, PipelineOptions options = {});

  /// What this rank did in its last step, on its own clock. (`recording` has all ranks of its
  /// replica, on one clock, and is called by all of them.)
  const RankRecording& rank_recording() const;

 private:
  class Impl;
};

}  // namespace stagecraft
