#pragma once

#include <cstdint>

namespace stagecraft {

/// Rises linearly for `warmup` steps, then falls along half a cosine to `least`, which it reaches
/// at step `steps` and keeps.
struct LearningRate {
  double peak = 1e-3;
  double least = 1e-4;
  int64_t warmup = 0;
  /// 0: the rate stays at its peak after the warm-up.
  int64_t steps = 0;

  /// The rate of an update, counted from 0. The first update of a warm-up has peak / warmup.
  double at(int64_t step) const;
};

/// ArgumentError for rates below 0 or not finite, a least rate above the peak, negative numbers of
/// steps, and a warm-up longer than all steps.
void check(const LearningRate& rate);

}  // namespace stagecraft
