#include "stagecraft/train/learning_rate.h"

#include <cmath>
#include <numbers>

#include "stagecraft/base/check.h"

namespace stagecraft {

double LearningRate::at(int64_t step) const {
  if (step < warmup) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup);
  if (steps == 0) return peak;
  if (step >= steps) return least;
  const double done = static_cast<double>(step - warmup) / static_cast<double>(steps - warmup);
  return least + (peak - least) * (1 + std::cos(std::numbers::pi * done)) / 2;
}

void check(const LearningRate& rate) {
  require<ArgumentError>(std::isfinite(rate.peak) && rate.peak >= 0,
                         "expected a learning rate of at least 0, got {}", rate.peak);
  require<ArgumentError>(rate.least >= 0 && rate.least <= rate.peak,
                         "expected a least learning rate from 0 to {}, got {}", rate.peak,
                         rate.least);
  require<ArgumentError>(rate.warmup >= 0 && rate.steps >= 0,
                         "expected numbers of steps of at least 0, got {} of warm-up and {} in all",
                         rate.warmup, rate.steps);
  require<ArgumentError>(rate.steps == 0 || rate.warmup <= rate.steps,
                         "expected a warm-up of at most {} steps, got {}", rate.steps, rate.warmup);
}

}  // namespace stagecraft
