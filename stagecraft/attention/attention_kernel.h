#pragma once

#include <array>

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"

namespace stagecraft::detail {

/// The dtype that scores and sums have: float32 for the half types, otherwise the same.
at::ScalarType accumulate_type(at::ScalarType type);

/// Attention without a score function. Records no gradients. Requires tensors that were checked;
/// key and value have the problem's batch or 1.
at::Tensor attention_forward(const AttentionProblem& problem, const at::Tensor& q,
                             const at::Tensor& k, const at::Tensor& v);

/// The gradients of query, key and value, undefined where `wanted` is false. Computes the
/// probabilities again. Deterministic: the order of all sums is that of the queries.
std::array<at::Tensor, 3> attention_backward(const AttentionProblem& problem, const at::Tensor& q,
                                             const at::Tensor& k, const at::Tensor& v,
                                             const at::Tensor& grad_out,
                                             std::array<bool, 3> wanted);

}  // namespace stagecraft::detail
