#include "stagecraft/plan/bound.h"

#include <cmath>

#include <gtest/gtest.h>

#include "benchmarks/plan_cases.h"
#include "tests/plan/exact.h"
#include "tests/plan/random_problem.h"

namespace stagecraft {
namespace {

void expect_stated_bounds(const std::vector<bench::PlanCase>& cases) {
  for (const bench::PlanCase& one : cases) {
    if (one.bound == 0) continue;
    EXPECT_NEAR(lower_bound(one.problem).value, one.bound, 0.5) << one.name;
  }
}

TEST(Bound, IsTheStatedOneForOneStageARank) {
  expect_stated_bounds(bench::single_stage_cases());
}

TEST(Bound, IsTheStatedOneForAV) {
  expect_stated_bounds(bench::v_cases());
}

TEST(Bound, IsTheStatedOneForAStep) {
  expect_stated_bounds(bench::step_cases());
}

TEST(Bound, IsTheStatedOneForUnevenStages) {
  expect_stated_bounds(bench::named_h_cases());
}

TEST(Bound, IsTheFrontierOfTheVFamilyForUnitCosts) {
  for (const int32_t p : {3, 4, 5, 6, 7, 8}) {
    for (int32_t k = p; 6 * p - 1 - 3 * k >= 0; ++k) {
      const Bound bound = lower_bound(bench::unit_problem(p, k));
      EXPECT_EQ(bound.value, 6 * 3 * p + 6 * p - 1 - 3 * k) << "p " << p << ", k " << k;
      EXPECT_EQ(bound.argument, BoundArgument::kLastForward);
    }
  }
}

// A bound that is one too large fails where the optimum is reached: in more than half of the cases.
TEST(Bound, IsNeverAboveTheOptimum) {
  Random random(25);
  int tight = 0;
  int tighter = 0;
  for (int i = 0; i < 2000; ++i) {
    const ScheduleProblem problem = tiny_problem(random, 8);
    const double optimum = exact_optimum(problem);
    const Bound quick = lower_bound(problem);
    const Bound bound = tight_bound(problem);
    ASSERT_GE(bound.value, quick.value);
    ASSERT_LE(bound.value, optimum + 1e-6)
        << "case " << i << ", " << to_string(problem.objective) << ", " << to_sentence(bound);
    if (quick.value > optimum - 1e-6) ++tight;
    if (bound.argument == BoundArgument::kOneRank) ++tighter;
  }
  EXPECT_GT(tight, 1000);
  EXPECT_GT(tighter, 20);
}

// Schedules that B1 to B7 leave up to 2 % from their bound, and that are optimal.
TEST(Bound, OfOneRankIsReachedByUnevenStages) {
  const auto tight = [](const bench::FamilyH& h) { return tight_bound(bench::family_h(h)).value; };
  EXPECT_EQ(tight({4, 2, "v", 12, 130, .4, 1.3}), 68347);
  EXPECT_EQ(tight({16, 2, "v", 48, 7, .4, 1.3}), 352616);
  EXPECT_EQ(tight({16, 2, "v", 64, 117, .1, 1.7}), 381584);
  // Where B1 is reached, B8 does not exceed it.
  EXPECT_EQ(tight({8, 2, "loop", 24, 13, .2, 1.5}), 154896);
}

TEST(Bound, IsNeverAboveTheOptimumOfOddProblems) {
  Random random(26);
  int compared = 0;
  for (int i = 0; i < 1500; ++i) {
    ScheduleProblem problem = odd_problem(random);
    // The exact search knows no bandwidth, which only delays.
    problem.link.bandwidth = std::nullopt;
    for (CostModel::PerLink& link : problem.links) link.cost.bandwidth = std::nullopt;
    if (problem.placement.num_stages() * problem.microbatches > 6) continue;
    const double optimum = exact_optimum(problem);
    const Bound bound = lower_bound(problem);
    ASSERT_LE(bound.value, optimum * (1 + 1e-8) + 1e-9)
        << "case " << i << ", " << to_string(problem.objective) << ", " << to_sentence(bound);
    ++compared;
  }
  EXPECT_GT(compared, 200);
}

TEST(Bound, NamesArgumentAndRank) {
  const Bound bound = lower_bound(
      bench::paper_problem({"6.2B", 16, 48, 2, 14407, 14380, 9676, 1610}, 1, Objective::kSpan));
  EXPECT_EQ(to_sentence(bound),
            "At the end of its last forward rank 15 has done all but what its memory holds (B2).");
  EXPECT_EQ(to_string(bound.argument), "B2");
}

}  // namespace
}  // namespace stagecraft
