#pragma once

#include <cstddef>
#include <cstdint>
#include <random>

namespace stagecraft {

/// Numbers that a seed alone decides, on every machine.
class Random {
 public:
  explicit Random(uint64_t seed) : engine_(seed) {}

  /// 0 up to n - 1.
  std::size_t below(std::size_t n) { return static_cast<std::size_t>(engine_() % n); }
  int32_t between(int32_t low, int32_t high) {
    return low + static_cast<int32_t>(below(static_cast<std::size_t>(high - low) + 1));
  }
  bool one_in(std::size_t n) { return below(n) == 0; }

 private:
  std::mt19937_64 engine_;
};

}  // namespace stagecraft
