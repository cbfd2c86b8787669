#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The bytes of a CPU tensor as text. They belong to the tensor.
inline std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

std::size_t num_bytes(const EncodedValue& value);
/// An encoded value as one string.
std::string pack(const EncodedValue& value);
/// Decodes `pack`'s string. MetadataError for invalid bytes, OutOfMemoryError without memory.
c10::IValue unpack(std::string_view bytes);

}  // namespace stagecraft::detail
