#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

namespace stagecraft {

/// The description of a tensor without its elements.
struct TensorMeta {
  std::vector<int64_t> shape;
  c10::ScalarType dtype = c10::ScalarType::Float;
  std::vector<int64_t> stride;
  c10::Device device = c10::kCPU;
  bool requires_grad = false;

  /// Throws ArgumentError for undefined tensors and for those without strides (sparse, nested).
  static TensorMeta of(const at::Tensor& tensor);

  friend bool operator==(const TensorMeta&, const TensorMeta&) = default;
};

/// `Tensor[4, 8] float32 grad`; the stride is named where it is not that of a contiguous tensor,
/// the device where it is not the CPU.
std::string describe(const TensorMeta& meta);
/// The same for any tensor. A sparse or nested tensor is described as `sparse` or `nested`, without
/// a stride.
std::string describe(const at::Tensor& tensor);

/// Throws MetadataError unless `actual` has the shape, dtype and stride of `expected`. They are
/// compared in this order, and the first difference is reported: `<what>: shape mismatch: expected
/// [4, 8], got [4]`. Device and requires_grad are not compared. The stride of a dimension with at
/// most one element is not compared, because no element is reached through it.
void validate(std::string_view what, const TensorMeta& expected, const at::Tensor& actual);

/// The same for lists, after their lengths; value i is named `<what>: value i`.
void validate(std::string_view what, std::span<const TensorMeta> expected,
              std::span<const at::Tensor> actual);

}  // namespace stagecraft
