#include "tests/runtime/random_functions.h"

#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/custom_function.h>

namespace stagecraft {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

struct Scale : Function<Scale> {
  static at::Tensor forward(AutogradContext*, const at::Tensor& x) { return x * 2; }
  static variable_list backward(AutogradContext*, const variable_list& grads) {
    return {grads[0] * 3};
  }
};

struct Weight : Function<Weight> {
  static at::Tensor forward(AutogradContext* ctx, const at::Tensor& x, const at::Tensor& weight) {
    ctx->save_for_backward({x, weight});
    return x * weight;
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const variable_list saved = ctx->get_saved_variables();
    at::Tensor dx;
    at::Tensor dw;
    if (ctx->needs_input_grad(0)) dx = (grads[0] * saved[1]).sum_to_size(saved[0].sizes());
    if (ctx->needs_input_grad(1)) dw = (grads[0] * saved[0]).sum_to_size(saved[1].sizes());
    return {dx, dw};
  }
};

struct Outputs : Function<Outputs> {
  static variable_list forward(AutogradContext* ctx, const at::Tensor& x) {
    ctx->save_for_backward({x});
    return {x * 1, x * x};
  }
  static variable_list backward(AutogradContext* ctx, const variable_list& grads) {
    const at::Tensor x = ctx->get_saved_variables()[0];
    return {grads[0] + grads[1] * x * 2};
  }
};

}  // namespace

at::Tensor custom_scale(const at::Tensor& x) {
  return Scale::apply(x);
}

at::Tensor custom_weight(const at::Tensor& x, const at::Tensor& weight) {
  return Weight::apply(x, weight);
}

std::tuple<at::Tensor, at::Tensor> custom_outputs(const at::Tensor& x) {
  const variable_list outputs = Outputs::apply(x);
  return {outputs[0], outputs[1]};
}

}  // namespace stagecraft
