#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "stagecraft/transport/wire/value_codec.h"

namespace stagecraft::detail {

std::size_t num_bytes(const EncodedValue& value);
/// All of it in one string.
std::string pack(const EncodedValue& value);
/// The value again. MetadataError for bytes that are none.
c10::IValue unpack(std::string_view bytes);

}  // namespace stagecraft::detail
