#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/transport/wire/bytes.h"

namespace stagecraft::detail {

/// All of a tensor except its elements, and how the elements are laid out in the message.
///
/// A tensor whose elements fill its memory (in any order of dimensions) travels as that memory, and
/// arrives in place. Expanded dimensions travel as one element. A tensor with gaps travels as a
/// copy.
struct TensorLayout {
  enum class Form : uint8_t { kUndefined, kDense, kCopy };

  Form form = Form::kUndefined;
  c10::ScalarType dtype = c10::ScalarType::Float;
  c10::Device device = c10::kCPU;
  bool requires_grad = false;
  bool by_link = false;  ///< travels over the device link
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides;

  /// ArgumentError for a tensor that cannot be sent.
  static TensorLayout of(const at::Tensor& tensor);
  void write(ByteWriter& out) const;
  static TensorLayout read(ByteReader& in);

  /// The number of bytes that travel.
  std::size_t num_bytes() const;
  /// The sizes of the tensor that travels: expanded dimensions have size 1.
  std::vector<int64_t> base_sizes() const;
};

/// The elements of a tensor as they travel, on its device. Shares the tensor's memory if possible,
/// and keeps it alive.
at::Tensor bytes_of(const TensorLayout& layout, const at::Tensor& tensor);

/// A tensor that is being received, on the device on which it was sent: on `home` if that is a
/// device of the same type, on the CPU if this process has no such device.
class ArrivingTensor {
 public:
  /// The layout must outlive the tensor.
  explicit ArrivingTensor(const TensorLayout& layout, std::optional<c10::Device> home = {});

  c10::Device device() const { return device_; }
  /// Allocates memory for a tensor that arrives over the device link, on the current stream.
  void allocate_for_link();
  /// The memory for the elements. Undefined if there are none, and before it is allocated.
  const at::Tensor& bytes() const { return bytes_; }
  /// The tensor, after its elements have arrived. Elements that arrived on the CPU are copied to
  /// the tensor's device, on the current stream.
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
