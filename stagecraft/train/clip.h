#pragma once

#include <vector>

#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The 2-norm of all gradients of the model: of each parameter, then of those norms, in the order
/// of the uncut model. A parameter that several stages hold counts once, one without a gradient not
/// at all. The same bits however the model is cut, as long as the gradients have the same.
double grad_norm(const std::vector<ModelState>& states);

/// Scales all gradients by most / (norm + 1e-6) where `norm`, that of grad_norm, is above `most`.
/// ArgumentError unless most is above 0.
void clip_grads(const std::vector<ModelState>& states, double norm, double most);

/// Throws Error, which names the first of them, when a gradient has an element that is infinite or
/// no number.
void check_finite_grads(const std::vector<ModelState>& states);

}  // namespace stagecraft
