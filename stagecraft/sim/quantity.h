#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace stagecraft {

/// The kind of a unit.
enum class QuantityKind : uint8_t { kPlain, kTime, kMemory };

/// A number with a unit.
struct Quantity {
  double value = 0;  ///< memory in bytes; time in `unit`; otherwise the number
  QuantityKind kind = QuantityKind::kPlain;
  std::string_view unit = {};  ///< "ms", "GiB"; empty without one
};

/// Reads "6500", "8GB", "1.5 GiB", "20us". Units of memory: B, kB, MB, GB, TB (powers of 1000) and
/// KiB, MiB, GiB, TiB (powers of 1024); of time: s, ms, us, ns. ArgumentError, which quotes the
/// text, for anything else and for a number that is negative or not finite.
Quantity parse_quantity(std::string_view text);

/// Bytes for people to read: "214.3 MiB", "7.90 GiB", "512 B".
std::string format_bytes(double bytes);

}  // namespace stagecraft
