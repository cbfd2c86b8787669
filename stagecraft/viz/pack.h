#pragma once

#include <span>
#include <string>

namespace stagecraft::viz {

/// Numbers as a JSON string that a script can turn into a typed array: the element type (u8, u16,
/// u32, f32 or f64: the smallest that holds all of them exactly), ':', and the little-endian bytes
/// in base64, as in "u16:AAEC".
std::string pack(std::span<const double> values);

/// The bytes in base64, padded.
std::string base64(std::span<const unsigned char> bytes);

}  // namespace stagecraft::viz
