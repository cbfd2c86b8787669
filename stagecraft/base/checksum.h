#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace stagecraft::detail {

/// A checksum of 64 bits. It detects accidental changes, not deliberate ones. `seed`: the checksum
/// of the preceding bytes.
uint64_t checksum(std::span<const std::byte> bytes, uint64_t seed = 0);

}  // namespace stagecraft::detail
