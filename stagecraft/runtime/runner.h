#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/recorded_run.h"
#include "stagecraft/runtime/schedule_source.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/tied_weight.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Options of a Runner, for as long as it lives.
struct RunnerOptions {
  /// Needed on the rank of the last stage, to train.
  Loss loss = {};
  /// Where stages' inputs come from; without it, a chain. The same on all ranks.
  std::optional<Ports> ports = std::nullopt;
  /// Weights of which several stages hold a copy. The same on all ranks.
  std::vector<TiedWeight> ties = {};
  /// How long a rank waits for another before it says so.
  std::chrono::nanoseconds timeout = std::chrono::seconds(60);
  /// Of random operators in stages. The same on all ranks; without it, the seed of the process's
  /// CPU generator when the runner is made.
  std::optional<uint64_t> seed = std::nullopt;
  /// How many pipelines side by side train one model. The world has as many ranks as all of them
  /// together: those of the first come first. Each is given its own part of the batch, which counts
  /// by its rows; gradients are those of the whole batch, on every replica in the same bits.
  int32_t replicas = 1;
  /// Wait for each send where it is posted: for finding schedules that rely on buffering.
  bool wait_for_sends = false;
};

/// One rank of a pipeline: its stages, run in the order of a schedule, over any transport. Every
/// rank has one and makes the same calls; `Pipeline` (pipeline.h) does all of it in one process.
///
///   Runner runner(transport, ScheduleSource::named("1F1B", 2), std::move(stages), {.loss = mse});
///   runner.step({x}, {}, {}, {.microbatches = 4});          // on the rank of stage 0
///   auto result = runner.step({}, {}, y, {.microbatches = 4});   // on that of the last stage
///
/// Before their first step the ranks compare version, schedule, stages, ports, ties, seed and kinds
/// of devices, before each step the number of microbatches and of completed steps: MetadataError on
/// every rank, which says which rank differs in what.
///
/// Gradients add up in the parameters' .grad as with plain autograd. A step that fails on any rank
/// throws on every rank, naming the first that failed: there as StageError or TimeoutError,
/// elsewhere as PeerError, which carries it. What the step had under way is let go of, parameters
/// that had no gradient before it have none after it, and the next step works.
///
/// Belongs to one thread: the rank's.
class Runner {
 public:
  /// `stages` are those that the schedule puts on this rank, in any order. The transport must
  /// outlive the runner. ArgumentError when stages, schedule, ports and ranks do not fit each
  /// other.
  Runner(Transport& transport, ScheduleSource source, std::vector<Stage> stages,
         RunnerOptions options = {});
  ~Runner();
  Runner(const Runner&) = delete;
  Runner& operator=(const Runner&) = delete;

  /// Trains on a batch: forward and backward of all its microbatches. Arguments are given on the
  /// rank of the stages that take them, targets on that of the last stage; results are there and,
  /// if `everywhere`, on the other ranks that ask.
  ///
  /// ArgumentError for a batch that cannot be cut or a number of microbatches that the schedule
  /// cannot have, and where gradients are switched off; then the other ranks throw, too.
  StepResult step(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  /// The same for a batch in microbatches.
  StepResult step(Microbatches batch, const StepOptions& options = {});

  /// The forwards alone, without gradients: nothing is kept, gradients and random numbers of later
  /// steps are not touched. The loss is computed where a target is given.
  StepResult eval(const Args& args, const Kwargs& kwargs = {}, const c10::IValue& target = {},
                  const StepOptions& options = {});
  StepResult eval(Microbatches batch, const StepOptions& options = {});

  /// How many steps trained it, on which random numbers depend: to go on where another run was, set
  /// what that one had, on all ranks.
  uint64_t completed_steps() const;
  void set_completed_steps(uint64_t steps);

  /// A step does this by itself where the last one failed. Where some ranks had not begun the one
  /// that failed, or several runners share a transport, all ranks call it: then the next step
  /// works. Throws as Transport::recover does.
  void recover();

  Callbacks& callbacks();
  Stage& stage(StageId stage);
  /// Which of the replicas this rank belongs to.
  int32_t replica() const;
  /// What this rank did in its last step.
  const RankRecording& recording() const;
  /// What all ranks of its replica did, on one clock; called by all ranks.
  Recording gather_recording();
  /// The same with what make_run_report needs (run_report.h); called by all ranks.
  RecordedRun gather_run();

 private:
  class Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace stagecraft
