#include "stagecraft/sim/quantity.h"

#include <array>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <system_error>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {
namespace {

struct MemoryUnit {
  std::string_view name;
  double bytes;
};
constexpr std::array<MemoryUnit, 10> kMemoryUnits = {{{"B", 1.0},
                                                      {"kB", 1e3},
                                                      {"KB", 1e3},
                                                      {"MB", 1e6},
                                                      {"GB", 1e9},
                                                      {"TB", 1e12},
                                                      {"KiB", 1024.0},
                                                      {"MiB", 1048576.0},
                                                      {"GiB", 1073741824.0},
                                                      {"TiB", 1099511627776.0}}};
constexpr std::array<std::string_view, 4> kTimeUnits = {"s", "ms", "us", "ns"};

}  // namespace

Quantity parse_quantity(std::string_view text) {
  const auto fail = [&](std::string_view why) {
    throw ArgumentError(fmt::format("{}: {}", quote(std::string(text)), why));
  };
  Quantity quantity;
  const char* const end = text.data() + text.size();
  const auto [stop, error] = std::from_chars(text.data(), end, quantity.value);
  if (error != std::errc()) fail("expected a number, with or without a unit");
  if (!std::isfinite(quantity.value) || quantity.value < 0) {
    fail("expected a finite number of at least 0");
  }
  std::string_view unit(stop, static_cast<std::size_t>(end - stop));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  if (unit.empty()) return quantity;
  for (const MemoryUnit& known : kMemoryUnits) {
    if (known.name != unit) continue;
    return {quantity.value * known.bytes, QuantityKind::kMemory, known.name};
  }
  for (const std::string_view known : kTimeUnits) {
    if (known == unit) return {quantity.value, QuantityKind::kTime, known};
  }
  fail("the units are B, kB, MB, GB, TB, KiB, MiB, GiB, TiB, s, ms, us, ns");
  return quantity;
}

std::string format_bytes(double bytes) {
  constexpr std::array<std::string_view, 5> kNames = {"B", "KiB", "MiB", "GiB", "TiB"};
  std::size_t unit = 0;
  double value = bytes;
  while (std::abs(value) >= 1024 && unit + 1 < kNames.size()) {
    value /= 1024;
    ++unit;
  }
  if (unit == 0) return fmt::format("{:.0f} B", value);
  return fmt::format("{:.{}f} {}", value, std::abs(value) < 10 ? 2 : 1, kNames[unit]);
}

}  // namespace stagecraft
