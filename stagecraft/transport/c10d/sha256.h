#pragma once

#include <string>
#include <string_view>

namespace stagecraft::detail {

/// 32 bytes.
std::string sha256(std::string_view message);
/// A mark on a message that only who has the key can make (HMAC, RFC 2104): 32 bytes.
std::string sign(std::string_view key, std::string_view message);

}  // namespace stagecraft::detail
