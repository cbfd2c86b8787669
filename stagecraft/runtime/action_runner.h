#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/launch/rank_device.h"
#include "stagecraft/runtime/parameter_exchange.h"
#include "stagecraft/runtime/pipeline_options.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/router.h"
#include "stagecraft/runtime/step_plan.h"
#include "stagecraft/runtime/wiring.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// The results of one rank's step, by microbatch. Outputs and losses are on the rank of the last
/// stage.
struct RankResults {
  std::vector<c10::IValue> outputs = {};
  std::vector<at::Tensor> losses = {};
  std::vector<at::Tensor> added_losses = {};
};

/// The built-in handling of the actions of a rank: what each action does with the stages, the
/// router and the other ranks. It neither records nor labels errors; Executor does.
class ActionRunner {
 public:
  /// The arguments must outlive the object. `stages` have the order of the wiring.
  ActionRunner(const ReplicaPlace& place, const Wiring& wiring, std::span<Stage> stages,
               const PipelineOptions& options, Router& router, ParameterExchange& exchange,
               detail::RankDevice& device);

  /// Begins a step, without results. Everything that `plan` points to must outlive the step.
  void start(const StepPlan& plan);
  /// Runs any action but an overlap, which has parts.
  void run(Action action);
  /// REDUCE_GRAD and its wait do nothing in a step that leaves gradients local.
  bool is_skipped(Action action) const;

  /// The parts of forward and backward, as in ActionContext.
  Stage& stage(Action action) { return stages_[position(action)]; }
  ForwardOptions forward_options(Action action) const;
  Arguments take_inputs(Action action);
  void finish_forward(Action action, const c10::IValue& given);
  void finish_forward(Action action, const c10::IValue& output, const at::Tensor& loss);
  std::vector<c10::IValue> take_output_grads(Action action);
  Router& router() { return router_; }

  /// For actions that a device captures. `parts` are the compute actions of a slot.
  void compute(std::span<const Action> parts);
  /// Runs a forward or a backward without its results, to find out whether a device can capture it.
  /// The part can then be computed.
  void rehearse(Action part);
  /// The values that forwards take and change in `compute`, saved so that the forwards can be
  /// computed again after a failure.
  struct Before {
    std::vector<Router::Taken> taken;  // by part
    std::vector<at::Tensor> added_losses;
  };
  Before save(std::span<const Action> parts);
  void restore(std::span<const Action> parts, const Before& before);
  /// Called instead of `compute`, when the values that the part takes from other ranks have
  /// arrived.
  void mark_received(Action part);

  /// The results of the last step. A caller may take or replace them.
  RankResults& results() { return results_; }

 private:
  class Computing;

  std::size_t position(Action action) const {
    return static_cast<std::size_t>(wiring_.local_index(action.stage()));
  }
  void mark_ready(Action action, bool is_forward);
  void note_added_loss(Action action);
  void keep_output(Action action, const c10::IValue& output);
  void compute_loss(Action action, const c10::IValue& output);
  void set_loss(Action action, const at::Tensor& loss);

  const ReplicaPlace& place_;
  const Wiring& wiring_;
  std::span<Stage> stages_;
  const PipelineOptions& options_;
  Router& router_;
  ParameterExchange& exchange_;
  detail::RankDevice& device_;

  StepPlan plan_;
  RankResults results_;
  bool is_computing_ = false;  // inside of `compute` or `rehearse`, perhaps in a capture
};

}  // namespace stagecraft
