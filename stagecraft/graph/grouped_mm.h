#pragma once

#include <ATen/core/Tensor.h>

namespace stagecraft {

/// One matrix product for each group of rows, as mixtures of experts compute it:
/// `stagecraft::grouped_mm(Tensor input, Tensor weight, Tensor offs) -> Tensor`.
///
/// - `input` is [rows, in]. The rows of a group are adjacent.
/// - `weight` is [groups, in, out].
/// - `offs` is int32 or int64 [groups]. Group i ends before row `offs[i]`, where group i + 1
/// begins.
/// - The result is [rows, out]. Rows after the last group are 0.
///
/// Results and gradients are bitwise equal to those of `transformers::grouped_mm_fallback`, which
/// exists in Python only. A backward computes only the gradients that are needed, so it can be
/// split into I and W. It has no second derivative.
///
/// The groups are read on the host: on a GPU each call waits for the device, and a step with such a
/// call cannot be captured as a device graph.
inline constexpr const char* kGroupedMmOperator = "stagecraft::grouped_mm";

/// The kernel without gradients. ArgumentError for shapes, types or groups that do not fit.
at::Tensor grouped_mm(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& offs);

/// The gradient of the weights, [groups, in, out], from that of the result: one product for each
/// group. Groups without rows have zeros. ArgumentError as above.
at::Tensor grouped_mm_weights(const at::Tensor& input, const at::Tensor& grad,
                              const at::Tensor& offs);

/// The kernel of autograd, for the same operator.
at::Tensor differentiable_grouped_mm(const at::Tensor& input, const at::Tensor& weight,
                                     const at::Tensor& offs);

}  // namespace stagecraft
