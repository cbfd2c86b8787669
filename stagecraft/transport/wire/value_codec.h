#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/transport/wire/tensor_layout.h"

namespace stagecraft::detail {

/// A value as it travels: what the next one of its kind is likely to have in common with it, what
/// not, and the elements of its tensors.
struct EncodedValue {
  std::string layout;               ///< structure, and all that is known of tensors but elements
  std::string values;               ///< numbers and texts
  std::vector<at::Tensor> tensors;  ///< their bytes, without those that have none
};

/// ArgumentError for what cannot be sent: tensors with history, opaque leaves and the like.
EncodedValue encode(const c10::IValue& value);

/// What arrives of a value besides its numbers and texts.
using ArrivingTensors = std::vector<ArrivingTensor>;

/// The layout of encoded values, read. MetadataError for bytes that are none, and where there is no
/// memory.
class ValueLayout {
 public:
  explicit ValueLayout(std::string_view bytes);

  /// Bytes of each tensor that has some.
  const std::vector<std::size_t>& tensor_bytes() const { return tensor_bytes_; }
  /// Memory for all of them.
  ArrivingTensors allocate() const;
  /// The value; the tensors' elements are there.
  c10::IValue build(std::string_view values, ArrivingTensors tensors) const;

 private:
  std::vector<TensorLayout> tensors_;
  std::vector<std::size_t> tensor_bytes_;
  std::string structure_;
};

}  // namespace stagecraft::detail
