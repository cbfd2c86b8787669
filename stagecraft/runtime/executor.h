#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/launch/device_failure.h"
#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/launch/device_timeline.h"
#include "stagecraft/runtime/launch/pending_actions.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/replica_reducer.h"
#include "stagecraft/runtime/router.h"
#include "stagecraft/runtime/stage_gathers.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/tied_weights.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// One step, the same for all its ranks.
struct StepPlan {
  const Schedule* schedule = nullptr;
  const Microbatches* batch = nullptr;
  const StepOptions* options = nullptr;
  bool is_training = true;
  uint64_t step = 0;  ///< unique for each step
  /// For random operators: the seed, and the number of steps that used it before.
  uint64_t seed = 0;
  uint64_t draw = 0;
  Recorder::Time zero = {};
  bool is_captured = false;      ///< the device notes the work instead of executing it
  MemoryMeter* meter = nullptr;  ///< an account for each rank, and one for values in transfer
};

/// Executes the action list of a rank. Every action goes through one function, which records it,
/// calls observers, labels exceptions, and checks whether the world is aborted.
class Executor {
 public:
  /// The arguments must outlive the executor. `stages` have the order of the wiring. `shards` may
  /// be null.
  Executor(Transport& transport, const ReplicaPlace& place, const Wiring& wiring,
           std::span<Stage> stages, const Placement& placement, const PipelineOptions& options,
           const Callbacks& callbacks, ParameterShards* shards);

  /// Connects to all ranks that this rank sends values to in a step: Transport::connect.
  void connect(Deadline deadline);

  /// Executes this rank's part of a step. A failure on this rank is thrown as StageError or
  /// TimeoutError, a failure of a different rank as PeerError. Before that, the world is aborted
  /// and everything that the step had in flight is released.
  void run(const StepPlan& plan);

  /// The same in parts, for a thread that executes the lists of several ranks in turns: start, each
  /// slot of the list in its order, send_ties of all ranks, finish. `offset` is the slot's place in
  /// the list. A slot must not be executed before what it needs (schedule/needs.h) is done on the
  /// other ranks.
  void start(const StepPlan& plan);
  void run_slot_at(std::size_t offset);
  void send_ties();
  void finish();

  /// The same for a slot whose compute `work` does, instead of the stages.
  void run_slot_as(std::size_t offset, const std::function<void()>& work);
  /// In such work: the compute of the slot itself, without recording it.
  void compute(std::size_t offset);
  /// In such work: runs one part of the slot, a forward or a backward, without its results. The
  /// part can then be computed. For finding out whether a device can capture it.
  void rehearse(Action part);
  /// In such work: what `compute` of forwards takes and changes, so that they can be computed again
  /// after a failure.
  struct Before {
    std::vector<Router::Taken> taken;  // by action of the slot
    std::vector<at::Tensor> added_losses;
  };
  Before save(std::size_t offset);
  void restore(std::size_t offset, const Before& before);
  /// In such work: the values of other ranks are there.
  void mark_received(Action action);
  Router& router() { return router_; }
  /// Instead of the results of the stages.
  void set_results(std::vector<c10::IValue> outputs, std::vector<at::Tensor> losses,
                   std::vector<at::Tensor> added_losses);

  /// After the last action of a step: rethrows the exception that is being handled, as StageError
  /// if the device has failed.
  [[noreturn]] void rethrow_explained();

  /// Keeps the gradients of the step. It is complete on all ranks.
  void commit() {
    had_no_grad_.clear();
    reducer_->add_earlier();
  }
  /// Drops the results of a step that failed on any rank, and resets the gradients of parameters
  /// that had none before the step. REQUIRES that no rank that shares a parameter is still in the
  /// step.
  void abandon();

  /// The parameters of this rank whose gradients are local, after a step that did not reduce them.
  int32_t num_local_grads() const { return reducer_->num_local(); }

  /// Results of the last step, by microbatch. Outputs and losses are on the rank of the last stage.
  std::vector<c10::IValue> take_outputs() { return std::move(outputs_); }
  std::vector<at::Tensor> take_losses() { return std::move(losses_); }
  std::vector<at::Tensor> take_added_losses() { return std::move(added_losses_); }
  std::vector<double> weights() const;

  /// Aborts the world because a deadline was missed, and prints the position of every rank.
  void announce_and_abort(const TimeoutError& error);
  /// Prints the same table if the world was aborted because a rank is lost. Only the first of the
  /// remaining ranks prints it, once.
  void announce_lost();

  const Recorder& recorder() const { return recorder_; }
  /// The recording of the last step, with the times and the memory of the rank's device. Waits for
  /// the device.
  const RankRecording& recorded();
  /// The marks of the steps to come; without marks, those of the rank's device.
  void set_timeline(detail::DeviceTimeline timeline) { given_timeline_ = std::move(timeline); }
  const detail::DeviceTimeline& timeline() const { return timeline_; }
  /// A step was launched at `zero` as one graph, whose capture had this recording and these marks.
  void set_replayed(const RankRecording& capture, const detail::DeviceTimeline& timeline,
                    Recorder::Time zero);
  /// The position of the rank in its list.
  ProgressMark& progress() { return *progress_; }
  /// Publishes this executor's progress. The last state stays visible after the executor is
  /// destroyed, until a different executor publishes its own.
  void publish_progress();
  /// The memory of the last step, by stage of this rank. Empty if the step did not measure it.
  std::span<const StageMemory> memory() const { return memory_; }

 private:
  friend class ActionContext;

  void start_list(const StepPlan& plan);
  void start_values();
  void run_list();
  void finish_list();
  std::size_t run_slot_of(std::size_t offset);
  template <typename Part>
  void guarded(Part&& part);
  std::span<const Action> list() const { return plan_.schedule->actions(place_.own()); }
  /// The action at that place of the list, with the parts of an overlap.
  std::span<const Action> slot_at(std::size_t offset) const {
    return list().subspan(offset, 1 + static_cast<std::size_t>(list()[offset].num_parts()));
  }
  void exchange_grads();
  void wait_reduced(StageId stage);
  void wait_for_weights(Action action, std::size_t offset);
  int64_t bytes_held() const;
  void run_slot(std::span<const Action> actions, std::size_t offset);
  void run_action(Action action, std::size_t offset);
  void run_recorded(Action action, std::size_t offset);
  void run_built_in(Action action);
  void run_measured(Action action, std::size_t offset);
  Arguments take_inputs(Action action);
  std::vector<c10::IValue> take_output_grads(Action action);
  void mark_ready(Action action, bool is_forward);
  void begin(Action action, std::size_t offset);
  void end(Action action, std::size_t offset);
  void finish_forward(Action action, const c10::IValue& given);
  c10::IValue without_weights(const c10::IValue& output) const;
  /// With a loss that is already computed.
  void finish_forward(Action action, const c10::IValue& output, const at::Tensor& loss);
  void note_added_loss(Action action);
  void keep_output(Action action, const c10::IValue& output);
  void compute_loss(Action action, const c10::IValue& output);
  void set_loss(Action action, const at::Tensor& loss);
  ForwardOptions forward_options(Action action) const;
  /// REDUCE_GRAD and its wait, in a step that leaves gradients local.
  bool is_skipped(Action action) const;
  Stage& stage(Action action) {
    return stages_[static_cast<std::size_t>(wiring_.local_index(action.stage()))];
  }

  void note_missing_grads();
  void note_complete();
  void note_kept(Action action);
  std::exception_ptr explain(const std::exception_ptr& cause);
  StageError::Place place_of(Action action) const;
  [[noreturn]] void fail(const std::exception_ptr& thrown);
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
  const std::unique_ptr<detail::DeviceProbe> device_;  // null unless all stages are on one device
  std::shared_ptr<detail::DeviceMarks> own_marks_;     // null without a device
  detail::DeviceTimeline given_timeline_;
  detail::DeviceTimeline timeline_;                  // of the last step
  bool is_read_ = true;                              // its times are in the recorder
  std::shared_ptr<detail::PendingActions> pending_;  // null without a device
  std::vector<detail::InFlight> in_flight_;          // by stage of this rank
  int64_t allocated_ = 0;                            // on the device at the begin of the last F
  bool is_out_of_memory_ = false;                    // so the last step failed
  std::string device_failure_;                       // why the device cannot be used any more
  const std::shared_ptr<ProgressMark>
      progress_;  // the transport may read it after the executor is gone
  Router router_;
  ParameterShards* const shards_;
  TiedWeights ties_;
  const std::unique_ptr<ReplicaReducer> reducer_;
  StageGathers gathers_;

  StepPlan plan_;
  std::span<const Action> slot_;  // the current action, or overlap with its parts
  Action current_;                // the current part of slot_; idle between actions
  std::vector<c10::IValue> outputs_;
  std::vector<at::Tensor> losses_;
  std::vector<at::Tensor> added_losses_;
  std::vector<at::Tensor> had_no_grad_;  // parameters without a gradient at the begin of the step
  std::vector<StageMemory> memory_;
  int64_t peak_memory_ = 0;
  std::shared_ptr<const AbortReason> announced_;  // the loss of a rank that was printed
  bool is_computing_ = false;                     // inside of `compute`
  bool is_exchanging_ = false;                    // gradients of replicas or tied weights
};

}  // namespace stagecraft
