#pragma once

#include <cstddef>
#include <cstdint>
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

/// The elements of a tensor of that layout as they travel: shares its memory where it can, and
/// keeps it alive.
at::Tensor bytes_of(const TensorLayout& layout, const at::Tensor& tensor);

/// A tensor that is about to arrive.
class ArrivingTensor {
 public:
  explicit ArrivingTensor(const TensorLayout& layout);

  /// Where the elements go; undefined if there are none.
  const at::Tensor& bytes() const { return bytes_; }
  /// Once they are there.
  at::Tensor finish();

 private:
  at::Tensor tensor_;
  at::Tensor base_;  ///< what is copied into; undefined where the bytes are the tensor's own
  at::Tensor host_;  ///< what is copied from
  at::Tensor bytes_;
  bool requires_grad_;
};

}  // namespace stagecraft::detail
