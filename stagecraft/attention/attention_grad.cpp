#include "stagecraft/attention/attention_grad.h"

#include <array>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/add.h>
#include <ATen/ops/alias.h>
#include <ATen/ops/sum.h>
#include <ATen/ops/zeros_like.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stagecraft/attention/attention_composite.h"
#include "stagecraft/attention/attention_kernel.h"

namespace stagecraft::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

/// A sum of no elements: 0, with a gradient of zeros for `x`.
at::Tensor nothing_of(const at::Tensor& x) {
  return x.flatten().narrow(0, 0, 0).sum();
}

/// Gradients that can be differentiated again.
variable_list differentiable_backward(const AttentionProblem& problem, const variable_list& saved,
                                      const at::Tensor& grad_out, std::array<bool, 3> wanted) {
  // If query, key and value are one tensor, aliases give each its own gradient.
  const std::array<at::Tensor, 3> x = {at::alias(saved[0]), at::alias(saved[1]),
                                       at::alias(saved[2])};
  const at::Tensor out = attention_composite(problem, {}, x[0], x[1], x[2]);
  variable_list result(x.size());
  variable_list inputs;
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!wanted[i]) continue;
    inputs.push_back(x[i]);
    result[i] = at::zeros_like(x[i]);
  }
  if (!out.requires_grad()) {  // no query keeps a key
    at::Tensor zero = nothing_of(grad_out);
    for (const at::Tensor& input : x) zero = zero.add(nothing_of(input));
    for (at::Tensor& grad : result) {
      if (grad.defined()) grad = grad.add(zero);
    }
    return result;
  }
  const variable_list grads =
      torch::autograd::grad({out}, inputs, {grad_out}, /*retain_graph=*/true,
                            /*create_graph=*/true, /*allow_unused=*/true);
  auto next = grads.begin();
  for (std::size_t i = 0; i < x.size(); ++i) {
    if (!wanted[i]) continue;
    if (next->defined()) result[i] = *next;
    ++next;
  }
  return result;
}

class Attention : public torch::autograd::Function<Attention> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& q, const at::Tensor& k,
                            const at::Tensor& v,
                            const c10::intrusive_ptr<AttentionProblem>& problem) {
    context->save_for_backward({q, k, v});
    context->saved_data["problem"] = c10::IValue::make_capsule(problem);
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    return attention_forward(*problem, q, k, v);
  }

  static variable_list backward(AutogradContext* context, const variable_list& grad_outs) {
    const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
    const auto capsule = context->saved_data.at("problem").toCapsule();
    const auto& problem = static_cast<const AttentionProblem&>(*capsule);
    const std::array<bool, 3> wanted = {context->needs_input_grad(0), context->needs_input_grad(1),
                                        context->needs_input_grad(2)};
    const variable_list saved = context->get_saved_variables();
    variable_list grads;
    if (at::GradMode::is_enabled()) {
      grads = differentiable_backward(problem, saved, grad_outs[0], wanted);
    } else {
      const auto found =
          attention_backward(problem, saved[0], saved[1], saved[2], grad_outs[0], wanted);
      grads.assign(found.begin(), found.end());
    }
    grads.emplace_back();  // the problem
    return grads;
  }
};

}  // namespace

at::Tensor attention_with_grad(const c10::intrusive_ptr<AttentionProblem>& problem,
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return Attention::apply(q, k, v, problem);
}

}  // namespace stagecraft::detail
