#pragma once

#include <string>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/train/model_state.h"

namespace stagecraft {

/// The 2-norm of all gradients of the model: the norm of each parameter's gradient, then the norm
/// of these norms, in the order of the unsplit model. A parameter that several stages hold counts
/// once. A parameter without a gradient does not count. For bitwise equal gradients, the norm is
/// bitwise equal for every split.
double grad_norm(const std::vector<ModelState>& states);
/// The two steps of grad_norm, for gradients in several processes: a norm for each state, on the
/// device of its gradient, undefined for a state without a gradient; and the norm of the defined
/// norms, which are on the CPU.
std::vector<at::Tensor> norms_of_grads(const std::vector<ModelState>& states);
double norm_of(const std::vector<at::Tensor>& norms);

/// Norms in a form that several replicas can put together, each from its piece of a gradient: the
/// sums of the squares of blocks of kShardBlock elements, in the order of memory, in float64 on the
/// CPU. `grad` has one dimension, and begins where a block of the parameter begins.
at::Tensor block_squares(const at::Tensor& grad);
/// The norm of a gradient from the sums of all its blocks, in their order.
at::Tensor norm_of_blocks(const std::vector<at::Tensor>& sums);

/// Copies of tensors with one element, on the CPU; undefined tensors stay undefined. Those of one
/// device are read with one copy, so the host waits for the device once.
std::vector<at::Tensor> read_scalars(const std::vector<at::Tensor>& scalars);

/// Scales all gradients by most / (norm + 1e-6) if `norm`, the result of grad_norm, is above
/// `most`. ArgumentError unless most is above 0.
void clip_grads(const std::vector<ModelState>& states, double norm, double most);

/// The first state whose gradient has an infinite or NaN element; null if there is none.
const ModelState* find_infinite_grad(const std::vector<ModelState>& states);
/// An error message for that state.
std::string describe_infinite_grad(const std::string& name);

}  // namespace stagecraft
