#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {

/// What travels of a tensor besides its elements, and how the elements lie in the message.
///
/// Tensors whose elements fill their memory (in any order of dimensions) travel as that memory, and
/// arrive in place. Of expanded dimensions one element travels. What has gaps travels as a copy.
struct TensorLayout {
  enum class Form : uint8_t { kUndefined, kDense, kCopy };

  Form form = Form::kUndefined;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  bool requires_grad = false;
  bool by_link = false;  ///< goes over the device link
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  /// ArgumentError for what cannot be sent.
  static TensorLayout of(const at::Tensor& tensor);
  void write(ByteWriter& out) const;
  static TensorLayout read(ByteReader& in);

  /// Of what travels.
  std::size_t num_bytes() const;
  /// The sizes of what travels: expanded dimensions have one element.
  std::vector<int64_t> base_sizes() const;
};

/// The elements of a tensor of that layout as they travel, on its device: shares its memory where
/// it can, and keeps it alive.
at::Tensor bytes_of(const TensorLayout& layout, const at::Tensor& tensor);

/// A tensor that is about to arrive, on the device on which it was sent: on `home` if that is of
/// the same kind, on the CPU if this process has no such device.
class ArrivingTensor {
 public:
  /// The layout must outlive it.
  explicit ArrivingTensor(const TensorLayout& layout, std::optional<c10::Device> home = {});

  c10::Device device() const { return device_; }
  /// Makes memory for a tensor that goes over the link, on the current stream.
  void allocate_for_link();
  /// Where the elements go; undefined if there are none, and before there is memory.
  const at::Tensor& bytes() const { return bytes_; }
  /// Once they are there. What came to the CPU is copied to its device, on the current stream.
  at::Tensor finish();

 private:
  at::Tensor empty(c10::Device device, const std::vector<int64_t>& strides) const;

  const TensorLayout* layout_;
  c10::Device device_ = c10::kCPU;
  std::vector<int64_t> base_sizes_;
  at::Tensor base_;  ///< the bytes, as elements
  at::Tensor bytes_;
};

}  // namespace stagecraft::detail
