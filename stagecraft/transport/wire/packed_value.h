#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

/// The memory of a tensor of bytes on the CPU, as text; it is the tensor's.
inline std::string_view text_of(const at::Tensor& bytes) {
  return {static_cast<const char*>(bytes.const_data_ptr()),
          static_cast<std::size_t>(bytes.numel())};
}

std::size_t num_bytes(const EncodedValue& value);
/// All of it in one string.
std::string pack(const EncodedValue& value);
/// The value again. MetadataError for bytes that are none.
c10::IValue unpack(std::string_view bytes);

}  // namespace stagecraft::detail
