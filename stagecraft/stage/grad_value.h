#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/ivalue.h>

/// The gradient of a value that crosses a border, as a value: None where there is none; a tensor
/// for a tensor; for any other tree a tuple with one entry, tensor or None, for each of its tensors
/// from left to right. So "no gradient" travels as None and never as zeros.
namespace stagecraft {

/// The tensors of a value, from left to right.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

/// `grads`: one for each tensor of the value, undefined where there is none. `is_tensor`: whether
/// the value itself is a tensor.
c10::IValue make_grad_value(bool is_tensor, std::vector<at::Tensor> grads);

/// The inverse: one for each of `num_tensors`. MetadataError when there are others.
std::vector<at::Tensor> grads_of(const c10::IValue& grad, std::size_t num_tensors);

/// a + b, tensor by tensor, where both have a gradient; otherwise that which is there. The order
/// matters for the last bits: `a` is what was summed before.
c10::IValue add_grad_values(const c10::IValue& a, const c10::IValue& b);

}  // namespace stagecraft
