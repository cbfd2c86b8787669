#include "stagecraft/runtime/action_context.h"

#include <algorithm>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/executor.h"

namespace stagecraft {

Rank ActionContext::rank() const {
  return executor_.transport_.rank();
}

Stage& ActionContext::stage(std::size_t part) const {
  return executor_.actions_.stage(parts_[part]);
}

double ActionContext::loss_weight(std::size_t part) const {
  return executor_.router_.weight(parts_[part].microbatch());
}

ForwardOptions ActionContext::forward_options(std::size_t part) const {
  return executor_.actions_.forward_options(parts_[part]);
}

void ActionContext::run(std::size_t part) {
  if (action_.is_overlap()) {
    executor_.run_recorded(parts_[part], parts_offset_ + part);
  } else {
    executor_.actions_.run(parts_[part]);
  }
}

void ActionContext::run_all() {
  for (std::size_t part = 0; part < parts_.size(); ++part) run(part);
}

Arguments ActionContext::take_inputs(std::size_t part) {
  return executor_.actions_.take_inputs(parts_[part]);
}

void ActionContext::finish_forward(const c10::IValue& output, std::size_t part) {
  executor_.actions_.finish_forward(parts_[part], output);
}

void ActionContext::finish_forward(const c10::IValue& output, const at::Tensor& loss,
                                   std::size_t part) {
  executor_.actions_.finish_forward(parts_[part], output, loss);
}

std::vector<c10::IValue> ActionContext::take_output_grads(std::size_t part) {
  return executor_.actions_.take_output_grads(parts_[part]);
}

void ActionContext::finish_backward(std::vector<c10::IValue> input_grads, std::size_t part) {
  executor_.router_.put_input_grads(parts_[part], std::move(input_grads));
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
