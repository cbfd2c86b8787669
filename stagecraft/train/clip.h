#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The 2-norm of all gradients of the model: of each parameter, then of those norms, in the order
/// of the uncut model. A parameter that several stages hold counts once, one without a gradient not
/// at all. The same bits however the model is cut, as long as the gradients have the same.
double grad_norm(const std::vector<ModelState>& states);
/// The two halves of it, where gradients are in several processes: a norm for each state, on the
/// CPU, undefined for what is not trained or has no gradient; and the norm of those that there are.
std::vector<at::Tensor> norms_of_grads(const std::vector<ModelState>& states);
double norm_of(const std::vector<at::Tensor>& norms);

/// Scales all gradients by most / (norm + 1e-6) where `norm`, that of grad_norm, is above `most`.
/// ArgumentError unless most is above 0.
void clip_grads(const std::vector<ModelState>& states, double norm, double most);

/// The first whose gradient has an element that is infinite or no number; nothing where none has.
const ModelState* find_infinite_grad(const std::vector<ModelState>& states);
/// Throws Error, which names that one.
void check_finite_grads(const std::vector<ModelState>& states);
/// The message of that Error.
std::string describe_infinite_grad(const std::string& name);

}  // namespace stagecraft
