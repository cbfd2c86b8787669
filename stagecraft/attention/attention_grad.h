#pragma once

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"

namespace stagecraft::detail {

/// attention_forward with gradients: keeps query, key and value, and computes the scores again in
/// backward.
at::Tensor attention_with_grad(const c10::intrusive_ptr<AttentionProblem>& problem,
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace stagecraft::detail
