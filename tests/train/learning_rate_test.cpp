#include "stagecraft/train/learning_rate.h"

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {

TEST(LearningRate, RisesThenFallsAlongACosine) {
  const LearningRate rate{.peak = 1, .least = 0.2, .warmup = 4, .steps = 14};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.25);
  EXPECT_DOUBLE_EQ(rate.at(3), 1);
  EXPECT_DOUBLE_EQ(rate.at(4), 1);
  EXPECT_DOUBLE_EQ(rate.at(9), 0.6);  // half way
  EXPECT_DOUBLE_EQ(rate.at(14), 0.2);
  EXPECT_DOUBLE_EQ(rate.at(1000), 0.2);
  for (int64_t step = 5; step < 14; ++step) EXPECT_LT(rate.at(step), rate.at(step - 1));
}

TEST(LearningRate, StaysAtItsPeakWithoutAnEnd) {
  const LearningRate rate{.peak = 0.5, .least = 0, .warmup = 0, .steps = 0};
  EXPECT_DOUBLE_EQ(rate.at(0), 0.5);
  EXPECT_DOUBLE_EQ(rate.at(100000), 0.5);
}

TEST(LearningRate, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(check({.peak = -1}), ArgumentError, "learning rate of at least 0, got -1");
  EXPECT_ERROR(check({.peak = 0.1, .least = 0.2}), ArgumentError, "from 0 to 0.1, got 0.2");
  EXPECT_ERROR(check({.peak = 0.1, .least = 0, .warmup = 5, .steps = 4}), ArgumentError,
               "warm-up of at most 4 steps, got 5");
  EXPECT_ERROR(check({.peak = 0.1, .least = 0, .warmup = -5}), ArgumentError, "-5 of warm-up");
}

}  // namespace stagecraft
