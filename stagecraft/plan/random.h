#pragma once

#include <cmath>
#include <cstdint>

namespace stagecraft::plan {

/// Random numbers that are the same on every processor: integers, and sums and products of doubles.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}

  uint64_t next() {
    state_ += 0x9E3779B97F4A7C15U;
    uint64_t z = state_;
    z = (z ^ (z >> 30U)) * 0xBF58476D1CE4E5B9U;
    z = (z ^ (z >> 27U)) * 0x94D049BB133111EBU;
    return z ^ (z >> 31U);
  }
  /// In [0, n).
  uint64_t below(uint64_t n) { return next() % n; }
  /// In [0, 1).
  double uniform() { return static_cast<double>(next() >> 11U) * 0x1p-53; }
  double uniform(double low, double high) { return low + (high - low) * uniform(); }
  bool chance(double share) { return uniform() < share; }
  /// About normally distributed, with mean 0 and standard deviation 1: a scaled sum of four uniform
  /// numbers.
  double normal() {
    return (uniform() + uniform() + uniform() + uniform() - 2) * 1.7320508075688772;
  }
  /// About exponentially distributed, with mean 1.
  double exponential() { return -0.6931471805599453 * log2_of(1 - uniform()); }

  /// 2^x, to five digits. The mathematical library is not used, because its last bits differ
  /// between platforms.
  static double exp2_of(double x) {
    const double whole = std::floor(x);
    const double f = (x - whole) * 0.6931471805599453;
    const double part =
        1 + f * (1 + f * (1.0 / 2 + f * (1.0 / 6 + f * (1.0 / 24 + f * (1.0 / 120)))));
    return std::ldexp(part, static_cast<int>(whole));
  }
  /// log2(x), to three digits; x > 0.
  static double log2_of(double x) {
    int exponent = 0;
    const double m = 2 * std::frexp(x, &exponent);  // in [1, 2)
    const double y = (m - 1) / (m + 1);
    const double y2 = y * y;
    return exponent - 1 + 2.8853900817779268 * y * (1 + y2 * (1.0 / 3 + y2 * (1.0 / 5 + y2 / 7)));
  }

 private:
  uint64_t state_;
};

}  // namespace stagecraft::plan
