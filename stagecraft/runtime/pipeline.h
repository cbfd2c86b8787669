#pragma once

#include <vector>

#include "stagecraft/runtime/pipeline_base.h"

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
/// stages share must be thread-safe. The caller's thread state (autocast, ...) is set on the ranks'
/// threads, too. With one rank there are no threads: stages run on the caller's thread.
///
/// A failed step throws the error of the first rank that failed, a StageError or TimeoutError,
/// after all ranks have ended. The pipeline is then as before the step: parameters that had no
/// gradient have none. (Gradients of earlier steps may contain a part of the failed step.)
class Pipeline : public PipelineBase {
 public:
  /// All stages of the model, in any order. ArgumentError if stages, ranks, schedule and ports do
  /// not fit each other.
  explicit Pipeline(std::vector<Stage> stages, PipelineOptions options = {});
  /// All stages of a model that was split. Ports, ties and guards are those of the pipe, unless the
  /// options have their own.
  explicit Pipeline(const Pipe& pipe, PipelineOptions options = {});

 private:
  class Impl;
};

}  // namespace stagecraft
