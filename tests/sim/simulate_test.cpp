#include "stagecraft/sim/simulate.h"

#include <gtest/gtest.h>

#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft {
namespace {

CostModel paper_costs(double f, double b, double w, double c) {
  CostModel costs;
  costs.stage.forward = f;
  costs.stage.backward_input = b;
  costs.stage.backward_weight = w;
  costs.link.latency = c;
  return costs;
}

TEST(Simulate, GivesTheZeroBubblePapersTimesOf1F1B) {
  const auto span = [](int32_t p, int32_t m, const CostModel& costs) {
    return simulate(build_schedule("1F1B", {.ranks = p, .microbatches = m}), costs).span;
  };
  EXPECT_EQ(span(8, 24, paper_costs(18522, 18086, 9337, 601)), 1456749);
  EXPECT_EQ(span(16, 64, paper_costs(11307, 11254, 8101, 379)), 2478390);
  EXPECT_EQ(span(32, 256, paper_costs(10402, 10248, 7698, 460)), 8391636);
}

TEST(Simulate, BubbleOf1F1BIsThatOfTheFormula) {
  for (int32_t p = 1; p <= 32; ++p) {
    for (int32_t m = 1; m <= 32; ++m) {
      const Simulation run = simulate(build_schedule("1F1B", {.ranks = p, .microbatches = m}));
      const double expected = static_cast<double>(p - 1) / (m + p - 1);
      EXPECT_NEAR(run.bubble, expected, 1e-12) << "p = " << p << ", m = " << m;
      for (const RankStats& rank : run.ranks) EXPECT_NEAR(rank.bubble, expected, 1e-12);
    }
  }
}

}  // namespace
}  // namespace stagecraft
