#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/grad_reducer.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/router.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One step, as all its ranks know it.
struct StepPlan {
  const Schedule* schedule = nullptr;
  const Microbatches* batch = nullptr;
  const StepOptions* options = nullptr;
  bool is_training = true;
  uint64_t step = 0;  ///< another for each step
  /// Of random operators: the seed, and how many steps have drawn from it.
  uint64_t seed = 0;
  uint64_t draw = 0;
  Recorder::Time zero = {};
  MemoryMeter* meter = nullptr;  ///< an account for each rank and one for what is on its way
};

/// Executes a rank's list of a lowered schedule. Every action goes through one function, which
/// records it, tells observers, labels what it throws and looks whether another rank has failed.
class Executor {
 public:
  /// All must outlive it. `stages`: in the order of the wiring's.
  Executor(Transport& transport, const ReplicaPlace& place, const Wiring& wiring,
           std::span<Stage> stages, const Placement& placement, const PipelineOptions& options,
           const Callbacks& callbacks);

  /// Executes this rank's part of a step. What goes wrong is thrown as StageError (it happened
  /// here), TimeoutError or PeerError (it happened elsewhere), after the world was told and all
  /// that the step had under way was let go of.
  void run(const StepPlan& plan);

  /// The step is complete everywhere: its gradients stay.
  void commit() {
    had_no_grad_.clear();
    reducer_.add_earlier();
  }
  /// The step has failed, here or elsewhere: forgets its results and takes back the gradients of
  /// parameters that had none before it. REQUIRES that no rank that shares a parameter is still in
  /// the step.
  void abandon();

  /// Of the last step: by microbatch; outputs and losses on the rank of the last stage.
  std::vector<c10::IValue> take_outputs() { return std::move(outputs_); }
  std::vector<at::Tensor> take_losses() { return std::move(losses_); }
  std::vector<at::Tensor> take_added_losses() { return std::move(added_losses_); }
  std::vector<double> weights() const;

  /// Aborts the world because a deadline was missed, and prints where every rank was.
  void announce_and_abort(const TimeoutError& error);
  /// Prints the same if the world was aborted because a rank is lost: by the first of those that
  /// are left, once.
  void announce_lost();

  const Recorder& recorder() const { return recorder_; }
  /// Where the rank is.
  ProgressMark& progress() { return *progress_; }
  /// From now on the transport tells others, until another executor of the rank does so; what it
  /// was last remains when this one has gone.
  void publish_progress();
  /// Of the last step that measured memory, by stage of this rank; otherwise empty.
  std::span<const StageMemory> memory() const { return memory_; }

 private:
  friend class ActionContext;

  void run_list(std::span<const Action> list);
  void exchange_grads();
  void run_slot(std::span<const Action> actions, std::size_t offset);
  void run_action(Action action, std::size_t offset);
  void run_recorded(Action action, std::size_t offset);
  void run_built_in(Action action);
  void run_measured(Action action, std::size_t offset);
  void begin(Action action, std::size_t offset);
  void end(Action action, std::size_t offset);
  void finish_forward(Action action, const c10::IValue& output);
  void compute_loss(Action action, const c10::IValue& output);
  ForwardOptions forward_options(Action action) const;
  Stage& stage(Action action) {
    return stages_[static_cast<std::size_t>(wiring_.local_index(action.stage()))];
  }

  void note_missing_grads();
  StageError::Place place_of(Action action) const;
  [[noreturn]] void fail(const std::exception_ptr& cause);
  template <typename E>
  [[noreturn]] void abort_as(const E& error);
  void release();

  Transport& transport_;
  ReplicaPlace place_;
  const Wiring& wiring_;
  std::span<Stage> stages_;
  const PipelineOptions& options_;
  const Callbacks& callbacks_;
  Recorder recorder_;
  const std::shared_ptr<ProgressMark> progress_;  // the transport may ask it for longer
  Router router_;
  TiedWeights ties_;
  GradReducer reducer_;

  StepPlan plan_;
  std::span<const Action> slot_;  // what is executed: an action, or an overlap with its parts
  Action current_;                // of it, the part; idle between actions
  std::vector<c10::IValue> outputs_;
  std::vector<at::Tensor> losses_;
  std::vector<at::Tensor> added_losses_;
  std::vector<at::Tensor> had_no_grad_;  // parameters, when the step began
  std::vector<StageMemory> memory_;
  int64_t peak_memory_ = 0;
  std::shared_ptr<const AbortReason> announced_;  // the loss of a rank
  bool is_exchanging_ = false;                    // gradients, of replicas and of tied weights
};

}  // namespace stagecraft
