#pragma once

#include <string>
#include <string_view>

namespace stagecraft::detail {

/// The SHA-256 digest of a message: 32 bytes.
std::string sha256(std::string_view message);
/// The HMAC (RFC 2104) of a message: 32 bytes. Only a holder of the key can compute it.
std::string sign(std::string_view key, std::string_view message);

}  // namespace stagecraft::detail
