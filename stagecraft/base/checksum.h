#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagecraft::detail {

/// A checksum of 64 bits, against accidents, not against attackers. `seed`: the checksum of the
/// bytes before these.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace stagecraft::detail
