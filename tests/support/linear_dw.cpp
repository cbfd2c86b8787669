#include "tests/support/linear_dw.h"

#include <cstdint>
#include <utility>

#include <ATen/ops/linear.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stagecraft {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

// The parameters are arguments, so that the result requires grad; they get no gradient here.
struct LinearDx : torch::autograd::Function<LinearDx> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& bias, int64_t notes) {
    ctx->save_for_backward({x, weight});
    ctx->saved_data["notes"] = notes;
    return at::linear(x, weight, bias);
  }

  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    // NOLINTNEXTLINE: the layer outlives its graphs, the stage's body holds both
    auto* notes = reinterpret_cast<LinearDw::Notes*>(ctx->saved_data["notes"].toInt());
    notes->push_back({saved[0], grads[0]});
    at::Tensor dx = ctx->needs_input_grad(0) ? grads[0].mm(saved[1]) : at::Tensor();
    return {std::move(dx), at::Tensor(), at::Tensor(), at::Tensor()};
  }
};

void add_grad(at::Tensor& parameter, const at::Tensor& grad) {
  at::Tensor& sum = parameter.mutable_grad();
  if (sum.defined()) {
    sum.add_(grad);
  } else {
    sum = grad.contiguous();
  }
}

}  // namespace

LinearDw::LinearDw(at::Tensor weight, at::Tensor bias)
    : weight_(std::move(weight)), bias_(std::move(bias)) {}

at::Tensor LinearDw::forward(const at::Tensor& x) {
  // NOLINTNEXTLINE: an address is all that a custom function's context takes
  return LinearDx::apply(x, weight_, bias_, reinterpret_cast<int64_t>(notes_.get()));
}

std::function<void()> LinearDw::take_work() {
  return [weight = weight_, bias = bias_, notes = std::exchange(*notes_, {})]() mutable {
    for (const Note& note : notes) {
      // As autograd does it: the gradient of the transposed weight, transposed.
      add_grad(weight, note.input.t().mm(note.grad).t());
      add_grad(bias, note.grad.sum(0));
    }
  };
}

}  // namespace stagecraft
