#pragma once

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"
#include "stagecraft/attention/half_plan.h"

namespace stagecraft::detail {

/// Whether half_attention takes these tensors: half types on a CUDA device.
bool takes_half_attention(const at::Tensor& q);

/// Attention without a score function in the dtype of the tensors, on matrix units, with gradients.
/// Requires a problem with at least one score. HalfWay lists the ways to compute it. The result is
/// differentiable once, as torch's fused attention is. With kFloat it is differentiable any number
/// of times.
at::Tensor half_attention(const c10::intrusive_ptr<AttentionProblem>& problem, const at::Tensor& q,
                          const at::Tensor& k, const at::Tensor& v);

/// `x`, whose gradient gets the strides of `x` before it is passed on: torch's fused attention
/// (2.11, cuDNN) gave wrong gradients where those of its result had different strides than the
/// result.
at::Tensor with_grad_layout(const at::Tensor& x);

}  // namespace stagecraft::detail
