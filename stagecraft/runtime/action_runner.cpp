#include "stagecraft/runtime/action_runner.h"

#include <algorithm>

#include <ATen/ops/add.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/values.h"
#include "stagecraft/stage/random_scope.h"

namespace stagecraft {

namespace {

// The tensor without history and without unused memory. The result of a reduction may own the
// storage of its input (that of mse_loss does), which would be kept until the end of the step.
at::Tensor compact_copy(const at::Tensor& scalar) {
  at::Tensor data = scalar.variable_data();
  return data.storage().nbytes() > data.nbytes() ? data.clone() : data;
}

}  // namespace

ActionRunner::ActionRunner(const ReplicaPlace& place, const Wiring& wiring, std::span<Stage> stages,
                           const PipelineOptions& options, Router& router,
                           ParameterExchange& exchange, detail::RankDevice& device)
    : place_(place),
      wiring_(wiring),
      stages_(stages),
      options_(options),
      router_(router),
      exchange_(exchange),
      device_(device) {}

void ActionRunner::start(const StepPlan& plan) {
  plan_ = plan;
  const auto microbatches = static_cast<std::size_t>(plan.schedule->num_microbatches());
  results_.outputs.assign(microbatches, {});
  results_.losses.assign(microbatches, {});
  results_.added_losses.assign(microbatches, {});
}

bool ActionRunner::is_skipped(Action action) const {
  return !plan_.options->reduce_grads &&
         (action.type() == ActionType::kReduceGrad || action.type() == ActionType::kWaitReduceGrad);
}

void ActionRunner::run(Action action) {
  if (is_skipped(action)) return;
  switch (action.type()) {
    case ActionType::kForward:
      return finish_forward(action, stage(action).forward(action.microbatch(), take_inputs(action),
                                                          forward_options(action)));
    case ActionType::kBackward:
      return router_.put_input_grads(
          action, stage(action).backward(action.microbatch(), take_output_grads(action),
                                         router_.weight(action.microbatch())));
    case ActionType::kBackwardInput:
      return router_.put_input_grads(
          action, stage(action).backward_input(action.microbatch(), take_output_grads(action),
                                               router_.weight(action.microbatch())));
    case ActionType::kBackwardWeight:
      return stage(action).backward_weight(action.microbatch());
    case ActionType::kSendForward:
    case ActionType::kSendBackward:
      return router_.send(action);
    case ActionType::kRecvForward:
    case ActionType::kRecvBackward:
      return router_.post_receives(action);
    case ActionType::kWaitSendForward:
    case ActionType::kWaitSendBackward:
      return router_.wait_for_sends(action);
    case ActionType::kUnshard:
      exchange_.unshard(action.stage());
      if (const auto& hook = stage(action).options().on_unshard) hook();
      return;
    case ActionType::kReshard:
      if (const auto& hook = stage(action).options().on_reshard) hook();
      return exchange_.reshard(action.stage());
    case ActionType::kReduceGrad:
      if (const auto& hook = stage(action).options().on_reduce_grad) hook();
      return exchange_.reduce(action.stage());
    case ActionType::kWaitReduceGrad:
      exchange_.wait_reduced(action.stage());
      if (const auto& hook = stage(action).options().on_wait_reduce_grad) hook();
      return;
    case ActionType::kOverlap:
    case ActionType::kIdle:
      return;
  }
}

ForwardOptions ActionRunner::forward_options(Action action) const {
  if (options_.random == RandomSource::kProcess) return {.is_training = plan_.is_training};
  // Microbatches are numbered over all replicas, so random numbers are those of one pipeline that
  // runs the whole batch.
  const auto microbatch = static_cast<uint64_t>(
      place_.replica() * plan_.schedule->num_microbatches() + action.microbatch().value());
  const auto stage = static_cast<uint64_t>(action.stage().value());
  return {.is_training = plan_.is_training,
          .seed = mix_seed(plan_.seed, plan_.draw, microbatch, stage),
          .draw = mix_seed(plan_.seed, plan_.draw, microbatch, kWholeModel)};
}

Arguments ActionRunner::take_inputs(Action action) {
  Arguments inputs = router_.take_inputs(action);
  device_.note_inputs(action.stage(), inputs);
  mark_ready(action, /*is_forward=*/true);
  return inputs;
}

std::vector<c10::IValue> ActionRunner::take_output_grads(Action action) {
  std::vector<c10::IValue> grads = router_.take_output_grads(action);
  mark_ready(action, /*is_forward=*/false);
  return grads;
}

void ActionRunner::mark_ready(Action action, bool is_forward) {
  if (is_computing_) return;
  const StageWires& wires = wiring_.stages()[position(action)];
  const auto& edges = is_forward ? wires.in : wires.out;
  if (std::ranges::all_of(edges, [](const WireEdge& edge) { return edge.is_local; })) return;
  device_.ready(router_.offset());
}

// Forward -------------------------------------------------------------------------------------

void ActionRunner::finish_forward(Action action, const c10::IValue& given) {
  const c10::IValue output = exchange_.without_weights(given);
  note_added_loss(action);
  if (!stage(action).is_last()) return router_.put_outputs(action, output);
  compute_loss(action, output);
  keep_output(action, output);
}

void ActionRunner::finish_forward(Action action, const c10::IValue& output,
                                  const at::Tensor& loss) {
  require<ArgumentError>(stage(action).is_last(),
                         "{}: a loss of stage {}, but only the last stage has one",
                         to_string(action), action.stage().value());
  require<ArgumentError>(!loss.defined() || loss.numel() == 1,
                         "{}: expected a loss with one element, got one of {}", to_string(action),
                         loss.defined() ? loss.numel() : 0);
  note_added_loss(action);
  if (loss.defined()) set_loss(action, loss);
  keep_output(action, output);
}

void ActionRunner::note_added_loss(Action action) {
  if (!plan_.is_training) return;
  const at::Tensor added = stage(action).added_loss(action.microbatch());
  if (!added.defined()) return;
  at::Tensor& sum = results_.added_losses[action.microbatch().position()];
  sum = sum.defined() ? at::add(sum, added) : compact_copy(added);
}

void ActionRunner::keep_output(Action action, const c10::IValue& output) {
  if (plan_.options->outputs == OutputMode::kNone) return;
  results_.outputs[action.microbatch().position()] = without_history(output, false);
}

void ActionRunner::compute_loss(Action action, const c10::IValue& output) {
  const auto m = action.microbatch().position();
  const bool has_target = m < plan_.batch->targets.size();
  if (!options_.loss || (!plan_.is_training && !has_target)) return;
  const c10::AutoGradMode grad_mode(plan_.is_training);
  set_loss(action, options_.loss(output, has_target ? plan_.batch->targets[m] : c10::IValue(),
                                 plan_.options->loss_arguments));
}

void ActionRunner::set_loss(Action action, const at::Tensor& loss) {
  results_.losses[action.microbatch().position()] = compact_copy(loss);
  if (plan_.is_training) stage(action).set_loss(action.microbatch(), loss);
}

// Capture -------------------------------------------------------------------------------------

class ActionRunner::Computing {
 public:
  explicit Computing(ActionRunner& runner) : runner_(runner) { runner_.is_computing_ = true; }
  ~Computing() { runner_.is_computing_ = false; }
  Computing(const Computing&) = delete;
  Computing& operator=(const Computing&) = delete;

 private:
  ActionRunner& runner_;
};

void ActionRunner::compute(std::span<const Action> parts) {
  const Computing computing(*this);
  for (const Action part : parts) run(part);
}

void ActionRunner::rehearse(Action part) {
  const Router::Taken taken = router_.save_taken(part);
  const MicrobatchId m = part.microbatch();
  const auto undo = [&] {
    router_.restore_taken(part, taken);
    if (part.type() == ActionType::kForward) stage(part).discard(m);
  };
  try {
    const Computing computing(*this);
    if (part.type() == ActionType::kForward) {
      stage(part).forward(m, take_inputs(part), forward_options(part));
    } else {
      stage(part).rehearse_backward(m, take_output_grads(part), router_.weight(m));
    }
  } catch (...) {
    undo();
    throw;
  }
  undo();
}

ActionRunner::Before ActionRunner::save(std::span<const Action> parts) {
  Before before{.taken = {}, .added_losses = results_.added_losses};
  for (const Action part : parts) {
    const bool takes = part.type() == ActionType::kForward;
    before.taken.push_back(takes ? router_.save_taken(part) : Router::Taken{});
  }
  return before;
}

void ActionRunner::restore(std::span<const Action> parts, const Before& before) {
  results_.added_losses = before.added_losses;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    if (parts[i].type() != ActionType::kForward) continue;
    stage(parts[i]).discard(parts[i].microbatch());
    router_.restore_taken(parts[i], before.taken[i]);
  }
}

void ActionRunner::mark_received(Action part) {
  if (part.type() == ActionType::kBackwardWeight) return;
  mark_ready(part, part.type() == ActionType::kForward);
}

}  // namespace stagecraft
