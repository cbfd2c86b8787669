#include "stagecraft/attention/half_attention.h"

#include <ATen/ops/empty_strided.h>
#include <ATen/ops/scaled_dot_product_attention.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stagecraft/attention/attention_grad.h"
#include "stagecraft/attention/packed_attention.h"

namespace stagecraft::detail {
namespace {

using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

class GradLayout : public torch::autograd::Function<GradLayout> {
 public:
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x) {
    context->saved_data["strides"] = x.strides().vec();
    return x;
  }

  static variable_list backward(AutogradContext* context, const variable_list& grads) {
    const at::Tensor& grad = grads[0];
    const auto strides = context->saved_data.at("strides").toIntVector();
    if (!grad.defined() || grad.strides() == at::IntArrayRef(strides)) return {grad};
    return {at::empty_strided(grad.sizes(), strides, grad.options()).copy_(grad)};
  }
};

/// Key or value, expanded to each member of the batch.
at::Tensor for_all_members(const AttentionProblem& problem, const at::Tensor& x) {
  return x.size(0) == problem.batch ? x : x.expand({problem.batch, -1, -1, -1}).contiguous();
}

/// Key or value, repeated for each head of the query, because kernels with a mask do not share
/// heads.
at::Tensor for_all_heads(const AttentionProblem& problem, const at::Tensor& x) {
  at::Tensor all = for_all_members(problem, x);
  if (problem.group == 1) return all;
  return all.unsqueeze(2)
      .expand({-1, -1, problem.group, -1, -1})
      .reshape({problem.batch, problem.heads(), x.size(2), x.size(3)});
}

at::Tensor whole_attention(const AttentionProblem& problem, bool causal, const at::Tensor& q,
                           const at::Tensor& k, const at::Tensor& v) {
  return with_grad_layout(at::scaled_dot_product_attention(
      q, for_all_members(problem, k), for_all_members(problem, v), /*attn_mask=*/{},
      /*dropout_p=*/0, causal, problem.scale, /*enable_gqa=*/problem.group != 1));
}

at::Tensor masked_attention(const AttentionProblem& problem, const HalfPlan& plan,
                            const at::Tensor& q, const at::Tensor& k, const at::Tensor& v) {
  return with_grad_layout(at::scaled_dot_product_attention(
      q, for_all_heads(problem, k), for_all_heads(problem, v), plan.keep, /*dropout_p=*/0,
      /*is_causal=*/false, problem.scale));
}

}  // namespace

at::Tensor with_grad_layout(const at::Tensor& x) {
  return GradLayout::apply(x);
}

bool takes_half_attention(const at::Tensor& q) {
  return q.is_cuda() && (q.scalar_type() == at::kHalf || q.scalar_type() == at::kBFloat16);
}

at::Tensor half_attention(const c10::intrusive_ptr<AttentionProblem>& problem, const at::Tensor& q,
                          const at::Tensor& k, const at::Tensor& v) {
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const auto plan = find_half_plan(*problem, q, v);
  switch (plan->way) {
    case HalfWay::kDense:
    case HalfWay::kCausal:
      return whole_attention(*problem, plan->way == HalfWay::kCausal, q, k, v);
    case HalfWay::kPacked:
      return packed_attention(*problem, plan->packed, plan->layout, q, k, v);
    case HalfWay::kMasked:
      return masked_attention(*problem, *plan, q, k, v);
    case HalfWay::kFloat:
      break;
  }
  return attention_with_grad(problem, q, k, v);
}

}  // namespace stagecraft::detail
