#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/base/error.h"
#include "stagecraft/runtime/abort_announcer.h"
#include "stagecraft/runtime/action_context.h"
#include "stagecraft/runtime/action_memory.h"
#include "stagecraft/runtime/action_runner.h"
#include "stagecraft/runtime/launch/rank_device.h"
#include "stagecraft/runtime/parameter_exchange.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/router.h"
#include "stagecraft/runtime/step_memory.h"
#include "stagecraft/runtime/step_plan.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Executes the action list of a rank. Every action goes through one function, which records it,
/// calls observers, labels exceptions, and checks whether the world is aborted. ActionRunner
/// defines what an action does.
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

  /// The parts of `run`, for a thread that executes the lists of several ranks in turns: start,
  /// each slot of the list in its order, send_ties of all ranks, finish. `offset` is the slot's
  /// place in the list. A slot must not be executed before what it needs (schedule/needs.h) is done
  /// on the other ranks.
  void start(const StepPlan& plan);
  void run_slot_at(std::size_t offset);
  void send_ties();
  void finish();
  /// Runs a slot that `work` computes instead of the stages. `work` may use actions().
  void run_slot_as(std::size_t offset, const std::function<void()>& work);

  /// After the last action of a step: rethrows the exception that is being handled, as StageError
  /// if the device has failed.
  [[noreturn]] void rethrow_explained();
  /// Keeps the gradients of the step. Called when the step is complete on all ranks.
  void commit() { exchange_.commit(); }
  /// Drops the results of a step that failed on any rank, and resets the gradients of parameters
  /// that had none before the step. REQUIRES that no rank that shares a parameter is still in the
  /// step.
  void abandon();

  ActionRunner& actions() { return actions_; }
  AbortAnnouncer& announcer() { return announcer_; }
  /// The parameters of this rank whose gradients are local, after a step that did not reduce them.
  int32_t num_local_grads() const { return exchange_.num_local_grads(); }
  /// The weights of the losses of the last step, by microbatch.
  std::vector<double> weights() const;
  /// The memory of the last step, by stage of this rank. Empty if the step did not measure it.
  std::span<const StageMemory> memory() const { return memory_.stages(); }

  const Recorder& recorder() const { return recorder_; }
  /// The recording of the last step, with the times and the memory of the rank's device. Waits for
  /// the device.
  const RankRecording& recorded();
  /// Sets the marks of later steps. A timeline without marks selects those of the rank's device.
  void set_timeline(detail::DeviceTimeline timeline) { device_.set_timeline(std::move(timeline)); }
  const detail::DeviceTimeline& timeline() const { return device_.timeline(); }
  /// Records that a step was launched at `zero` as one graph, whose capture had this recording and
  /// these marks.
  void set_replayed(const RankRecording& capture, const detail::DeviceTimeline& timeline,
                    Recorder::Time zero);

  /// The position of the rank in its list.
  ProgressMark& progress() { return *progress_; }
  /// Publishes this executor's progress. The last state stays visible after the executor is
  /// destroyed, until a different executor publishes its own.
  void publish_progress();

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
  void enter_slot(std::size_t offset);
  void run_action(Action action, std::size_t offset);
  void run_recorded(Action action, std::size_t offset);
  void begin(Action action, std::size_t offset);
  void end(Action action, std::size_t offset);

  StageError::Place place_of(Action action) const;
  [[noreturn]] void fail(const std::exception_ptr& thrown);
  template <typename E>
  [[noreturn]] void abort_as(const E& error);
  void release();

  Transport& transport_;
  const ReplicaPlace& place_;
  const Wiring& wiring_;
  std::span<Stage> stages_;
  const Callbacks& callbacks_;
  AbortAnnouncer announcer_;
  Recorder recorder_;
  const std::shared_ptr<ProgressMark> progress_;  // the transport may read it afterwards
  detail::RankDevice device_;
  Router router_;
  ParameterExchange exchange_;
  ActionRunner actions_;
  StepMemory memory_;

  StepPlan plan_;
  std::span<const Action> slot_;  // the current action, or overlap with its parts
  Action current_;                // the current part of slot_; idle between actions
};

}  // namespace stagecraft
