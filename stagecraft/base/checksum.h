#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagecraft::detail {

/// A number that is another one, but for one case in 2^64, when a byte differs. Against accidents,
/// not against attackers. `seed`: that of what came before.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace stagecraft::detail
