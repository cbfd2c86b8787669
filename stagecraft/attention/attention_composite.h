#pragma once

#include <ATen/core/Tensor.h>

#include "stagecraft/attention/attention_plan.h"
#include "stagecraft/attention/flex_attention.h"

namespace stagecraft::detail {

/// Attention made of differentiable operators only, for score functions and for gradients of
/// gradients. Keeps the probabilities of kept blocks if gradients are recorded. `score_fn` may be
/// empty.
at::Tensor attention_composite(const AttentionProblem& problem, const ScoreFn& score_fn,
                               const at::Tensor& q, const at::Tensor& k, const at::Tensor& v);

}  // namespace stagecraft::detail
