#include "stagecraft/runtime/action_context.h"

#include <algorithm>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/executor.h"

namespace stagecraft {

Rank ActionContext::rank() const {
  return executor_.transport_.rank();
}

Action ActionContext::get_part(std::size_t part) const {
  require<ArgumentError>(part < parts_.size(),
                         "a handler asks for part {} of {}; expected one below {}", part,
                         to_string(action_), parts_.size());
  return parts_[part];
}

Action ActionContext::get_compute(std::size_t part, std::string_view call) const {
  const Action action = get_part(part);
  require<ArgumentError>(is_compute(action.type()),
                         "a handler calls {} for {}; expected F, I, W or B", call,
                         to_string(action));
  return action;
}

Action ActionContext::get_forward(std::size_t part, std::string_view call) const {
  const Action action = get_part(part);
  require<ArgumentError>(action.type() == ActionType::kForward,
                         "a handler calls {} for {}; expected F", call, to_string(action));
  return action;
}

Action ActionContext::get_backward(std::size_t part, std::string_view call) const {
  const Action action = get_part(part);
  require<ArgumentError>(makes_input_gradients(action.type()),
                         "a handler calls {} for {}; expected B or I", call, to_string(action));
  return action;
}

Stage& ActionContext::stage(std::size_t part) const {
  return executor_.actions_.stage(get_part(part));
}

MicrobatchId ActionContext::microbatch(std::size_t part) const {
  return get_compute(part, "microbatch").microbatch();
}

double ActionContext::loss_weight(std::size_t part) const {
  return executor_.router_.weight(get_compute(part, "loss_weight").microbatch());
}

ForwardOptions ActionContext::forward_options(std::size_t part) const {
  return executor_.actions_.forward_options(get_compute(part, "forward_options"));
}

void ActionContext::run(std::size_t part) {
  const Action action = get_part(part);
  if (action_.is_overlap()) {
    executor_.run_recorded(action, parts_offset_ + part);
  } else {
    executor_.actions_.run(action);
  }
}

void ActionContext::run_all() {
  for (std::size_t part = 0; part < parts_.size(); ++part) run(part);
}

Arguments ActionContext::take_inputs(std::size_t part) {
  return executor_.actions_.take_inputs(get_forward(part, "take_inputs"));
}

void ActionContext::finish_forward(const c10::IValue& output, std::size_t part) {
  executor_.actions_.finish_forward(get_forward(part, "finish_forward"), output);
}

void ActionContext::finish_forward(const c10::IValue& output, const at::Tensor& loss,
                                   std::size_t part) {
  executor_.actions_.finish_forward(get_forward(part, "finish_forward"), output, loss);
}

std::vector<c10::IValue> ActionContext::take_output_grads(std::size_t part) {
  return executor_.actions_.take_output_grads(get_backward(part, "take_output_grads"));
}

void ActionContext::finish_backward(std::vector<c10::IValue> input_grads, std::size_t part) {
  executor_.router_.put_input_grads(get_backward(part, "finish_backward"), std::move(input_grads));
}

bool Callbacks::empty() const {
  return observers_.empty() &&
         std::none_of(handlers_.begin(), handlers_.end(),
                      [](const ActionHandler& handler) { return static_cast<bool>(handler); });
}

void Callbacks::replace(ActionType type, ActionHandler handler) {
  require<ArgumentError>(
      !is_transfer(type) && !is_send_wait(type) && type != ActionType::kIdle,
      "the handling of {} cannot be replaced: only F, I, W, B, UNSHARD, RESHARD, "
      "REDUCE_GRAD, WAIT_REDUCE_GRAD and OVERLAP_F_B",
      type == ActionType::kIdle ? "idle slots" : to_string(type));
  handlers_[static_cast<std::size_t>(type)] = std::move(handler);
}

}  // namespace stagecraft
