#pragma once

#include <cstdint>

#include <ATen/TensorOperators.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

namespace stagecraft {

/// [count, width], all elements different.
inline at::Tensor sample_rows(int64_t count, int64_t width) {
  return torch::arange(count * width, at::kFloat).cos().view({count, width});
}

/// [width, width], wants a gradient.
inline at::Tensor sample_weight(int64_t width, double scale) {
  return (torch::arange(width * width, at::kFloat).sin() * scale)
      .view({width, width})
      .requires_grad_();
}

}  // namespace stagecraft
