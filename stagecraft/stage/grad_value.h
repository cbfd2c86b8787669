#pragma once

#include <cstddef>
#include <vector>

#include <ATen/core/ivalue.h>

/// The gradient of a value that crosses a boundary, as a value: None if there is no gradient; a
/// tensor for a tensor; for any other tree a tuple with one entry, tensor or None, for each of its
/// tensors from left to right. A missing gradient is sent as None, never as zeros.
namespace stagecraft {

/// The tensors of a value, from left to right.
std::vector<at::Tensor> tensors_of(const c10::IValue& value);

/// `grads` has one entry for each tensor of the value; undefined if there is no gradient.
/// `is_tensor`: whether the value itself is a tensor.
c10::IValue make_grad_value(bool is_tensor, std::vector<at::Tensor> grads);

/// The inverse: one tensor for each of `num_tensors`. MetadataError for a different number.
std::vector<at::Tensor> grads_of(const c10::IValue& grad, std::size_t num_tensors);

/// a + b, tensor by tensor. If only one of two tensors has a gradient, the sum is that gradient.
/// The order matters for the last bits: `a` is the earlier sum.
c10::IValue add_grad_values(const c10::IValue& a, const c10::IValue& b);

}  // namespace stagecraft
