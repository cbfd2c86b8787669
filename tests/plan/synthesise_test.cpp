#include "stagecraft/plan/synthesise.h"

#include <algorithm>
#include <atomic>
#include <cmath>

#include <gtest/gtest.h>

#include "benchmarks/plan_cases.h"
#include "stagecraft/base/error.h"
#include "stagecraft/plan/evaluate.h"
#include "stagecraft/plan/fill.h"
#include "stagecraft/plan/repeat.h"
#include "stagecraft/plan/seeds.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/text.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/simulate.h"
#include "tests/plan/exact.h"
#include "tests/plan/random_problem.h"

namespace stagecraft {
namespace {

SynthesisOptions with_rounds(int64_t rounds, uint64_t seed = 1) {
  SynthesisOptions options;
  options.rounds = rounds;
  options.seed = seed;
  return options;
}

// What every result has to be.
void expect_good(const ScheduleProblem& problem, const Synthesis& result) {
  ASSERT_TRUE(result.schedule.has_value());
  const StageGraph graph = stage_graph(problem);
  const Verdict verdict = verify(*result.schedule, graph, {.microbatches = problem.microbatches});
  ASSERT_TRUE(verdict.ok()) << to_string(verdict.findings.front());
  const Simulation simulation = simulate(*result.schedule, cost_model(problem), graph);
  const double slack = 1e-9 * simulation.makespan + 1e-12;
  EXPECT_NEAR(simulation.makespan, result.makespan, slack);
  EXPECT_NEAR(simulation.span, result.span, slack);
  EXPECT_EQ(result.value, problem.objective == Objective::kSpan ? result.span : result.makespan);
  EXPECT_GE(result.value, result.bound.value * (1 - 1e-9));
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const double cap = problem.ranks[r].cap * (1 + 1e-9) + 1e-9;
    EXPECT_LE(result.peaks[r], cap) << "rank " << r;
    EXPECT_LE(simulation.ranks[r].peak_memory, cap) << "rank " << r;
  }
}

TEST(Synthesise, IsNearTheOptimum) {
  Random random(31);
  int optimal = 0;
  for (int i = 0; i < 600; ++i) {
    const ScheduleProblem problem = tiny_problem(random, 8);
    const double optimum = exact_optimum(problem);
    const Synthesis result = synthesise(problem, with_rounds(150));
    expect_good(problem, result);
    ASSERT_GE(result.value, optimum - 1e-6) << "case " << i;
    ASSERT_LE(result.value, optimum * 1.02 + 1e-6) << "case " << i;
    if (result.value <= optimum + 1e-6) ++optimal;
  }
  EXPECT_GT(optimal, 590);
}

TEST(Synthesise, IsNeverWorseThanABuiltInScheduleThatFits) {
  Random random(32);
  int compared = 0;
  for (int i = 0; i < 400; ++i) {
    const ScheduleProblem problem = odd_problem(random);
    const Synthesis result = synthesise(problem, with_rounds(4));
    expect_good(problem, result);
    if (::testing::Test::HasFatalFailure()) FAIL() << "case " << i;
    const plan::Instance in(problem);
    for (const ScheduleKind& kind : schedule_kinds()) {
      const Dims dims{in.ranks, in.stages / in.ranks, in.microbatches};
      if (!kind.has_backward || !kind.takes(dims)) continue;
      const Schedule schedule =
          kind.build({.ranks = dims.p, .microbatches = dims.m, .stages_per_rank = dims.l});
      const auto words = plan::to_words(in, schedule);
      if (!words) continue;
      const plan::Score score = plan::Evaluator(in).run(*words);
      if (!score.fits) continue;
      EXPECT_LE(result.value, score.value * (1 + 1e-9)) << "case " << i << ", " << kind.name;
      ++compared;
    }
  }
  EXPECT_GT(compared, 200);
}

TEST(Synthesise, TakesASingleRankAndASingleMicrobatch) {
  ScheduleProblem problem;
  problem.stages.resize(1);
  const Synthesis result = synthesise(problem, with_rounds(1));
  expect_good(problem, result);
  EXPECT_EQ(result.value, 3);
  EXPECT_EQ(result.gap(), 0);
}

TEST(Synthesise, DependsOnTheSeedAlone) {
  const ScheduleProblem problem = bench::family_h({8, 2, "v", 16, 6, .3, 1.1});
  const Synthesis first = synthesise(problem, with_rounds(60));
  const Synthesis second = synthesise(problem, with_rounds(60));
  EXPECT_EQ(*first.schedule, *second.schedule);
  EXPECT_EQ(first.value, second.value);
  EXPECT_EQ(first.rounds, second.rounds);
}

// The same on every processor: no fused operations, no mathematical library, no clock.
TEST(Synthesise, IsTheSameEverywhere) {
  const auto checksum = [](const ScheduleProblem& problem, int64_t rounds) {
    uint64_t sum = 0;
    const Synthesis result = synthesise(problem, with_rounds(rounds));
    for (const ActionList& list : result.schedule->lists()) {
      for (const Action action : list) sum = (sum ^ action.bits()) * 0x100000001B3U;
    }
    return sum;
  };
  EXPECT_EQ(checksum(bench::family_h({8, 2, "v", 16, 6, .3, 1.1}), 400), 13829463319245199194U);
  EXPECT_EQ(checksum(bench::family_h({8, 2, "loop", 24, 15, .4, .9}), 100), 17352333184365997936U);
  EXPECT_EQ(checksum(bench::paper_problem({"14.6B", 16, 48, 1, 11347, 11248, 8132, 377}, 2,
                                          Objective::kSpan),
                     60),
            14086217129756119186U);
}

TEST(Synthesise, EndsSoonWhenCancelled) {
  const ScheduleProblem problem = bench::family_h({8, 2, "v", 16, 6, .3, 1.1});
  std::atomic<bool> cancel = true;
  SynthesisOptions options;
  options.time_limit = std::chrono::hours(1);
  options.cancel = &cancel;
  expect_good(problem, synthesise(problem, options));

  cancel = false;
  int told = 0;
  options.progress = [&](const SynthesisProgress& progress) {
    EXPECT_GT(progress.value, 0);
    if (++told == 2) cancel = true;
  };
  expect_good(problem, synthesise(problem, options));
}

TEST(Synthesise, TellsOfEveryImprovement) {
  SynthesisOptions options = with_rounds(20);
  double last = std::numeric_limits<double>::infinity();
  options.progress = [&](const SynthesisProgress& progress) {
    EXPECT_LT(progress.value, last);
    EXPECT_NEAR(progress.gap, progress.value / progress.bound - 1, 1e-12);
    last = progress.value;
  };
  const Synthesis result = synthesise(bench::family_h({8, 2, "v", 16, 6, .3, 1.1}), options);
  EXPECT_EQ(result.value, last);
}

TEST(Synthesise, SaysWhichRankLacksWhat) {
  ScheduleProblem problem;
  problem.stages.resize(4);
  problem.placement = Placement::v(2, 4);
  problem.ranks = {{.cap = 10, .fixed = 8.5}, {.cap = 4, .fixed = 5}};
  const Synthesis result = synthesise(problem);
  EXPECT_FALSE(result.schedule.has_value());
  ASSERT_EQ(result.shortfalls.size(), 2U);
  EXPECT_EQ(result.shortfalls[0].rank, Rank(0));
  EXPECT_EQ(result.shortfalls[0].microbatch, 2);
  EXPECT_EQ(result.shortfalls[0].lacks(), 0.5);
  EXPECT_FALSE(result.shortfalls[0].is_fixed_alone());
  EXPECT_TRUE(result.shortfalls[1].is_fixed_alone());
  EXPECT_EQ(result.shortfalls[1].lacks(), 1);
  EXPECT_FALSE(quick_score(problem).has_value());
}

TEST(Synthesise, RefusesProblemsThatAreNone) {
  ScheduleProblem problem;
  EXPECT_THROW(synthesise(problem), ArgumentError);  // no loads
  problem.stages.resize(1);
  problem.stages[0].forward = -1;
  EXPECT_THROW(synthesise(problem), ArgumentError);
  problem.stages[0].forward = std::nan("");
  EXPECT_THROW(lower_bound(problem), ArgumentError);
  problem.stages[0].forward = 1;
  problem.microbatches = 0;
  EXPECT_THROW(synthesise(problem), ArgumentError);
  problem.microbatches = 2;
  problem.sizes = {1};
  EXPECT_THROW(synthesise(problem), ArgumentError);
  problem.sizes.clear();
  problem.ranks = {{.speed = 0}};
  EXPECT_THROW(synthesise(problem), ArgumentError);
}

TEST(QuickScore, IsWhatAFewSeedsGive) {
  const ScheduleProblem problem = bench::family_h({8, 2, "v", 32, 5, .2, .9});
  const auto score = quick_score(problem);
  ASSERT_TRUE(score.has_value());
  EXPECT_GE(*score, lower_bound(problem).value);
  EXPECT_LE(*score, 1.05 * lower_bound(problem).value);
}

TEST(Repeat, MakesAScheduleOfMoreMicrobatches) {
  const bench::PaperSetting setting{"6.2B", 4, 24, 2, 14407, 14380, 9676, 1610};
  ScheduleProblem problem = bench::paper_problem(setting, 1, Objective::kStep);
  const plan::Instance small(problem);
  const plan::Words words =
      *plan::to_words(small, build_schedule("ZBVZeroBubble", {.ranks = 4, .microbatches = 24}));
  problem.microbatches = 60;
  const plan::Instance large(problem);
  plan::Words repeated;
  ASSERT_TRUE(plan::repeat_stretch(small, words, 1, 36, .5, repeated));
  const plan::Score score = plan::Evaluator(large).run(repeated);
  EXPECT_TRUE(score.runs);
  EXPECT_TRUE(score.fits);
  // No worse a bubble: 36 more microbatches take 36 times their work.
  const double period = 2 * (setting.f + setting.b + setting.w);
  EXPECT_NEAR(score.value - plan::Evaluator(small).run(words).value, 36 * period, 0.5);
  EXPECT_EQ(plan::to_schedule(problem, repeated).num_actions(), large.num_actions());
}

TEST(Repeat, LeavesAMultipleOfTwelve) {
  EXPECT_EQ(plan::repeated_microbatches(8, 40), 0);
  EXPECT_EQ(plan::repeated_microbatches(8, 64), 28);
  EXPECT_EQ((512 - plan::repeated_microbatches(64, 512)) % 12, 0);
}

TEST(GapFiller, TakesOneFOneBToTheBound) {
  const ScheduleProblem problem =
      bench::paper_problem({"1.5B", 8, 24, 1, 18522, 18086, 9337, 601}, 1, Objective::kSpan);
  const plan::Instance in(problem);
  plan::Evaluator evaluator(in);
  plan::Words words = *plan::to_words(in, build_schedule("1F1B", {.ranks = 8, .microbatches = 24}));
  const plan::Score before = evaluator.run(words);
  ASSERT_TRUE(before.fits);
  plan::GapFiller filler(in);
  const double value = filler.improve(words, before.value, 2, 0);
  EXPECT_LT(value, before.value);
  EXPECT_NEAR(value, 1310405, 0.5);
  const plan::Score after = evaluator.run(words);
  EXPECT_TRUE(after.fits);
  EXPECT_EQ(after.value, value);
}

// Tight caps: an action that moves without a look at what it passes is soon over one.
TEST(GapFiller, KeepsWithinMemoryInEveryPass) {
  plan::Random dates(34);
  int passes = 0;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    const ScheduleProblem problem =
        bench::family_h({4, 2, seed % 2 == 0 ? "v" : "loop", 12, seed, .4, .6});
    const plan::Instance in(problem);
    plan::Evaluator evaluator(in);
    plan::Seeder seeder(in);
    plan::GapFiller filler(in);
    plan::Words words;
    for (int i = 0; i < 20; ++i) {
      if (!seeder.build(plan::random_dates(dates, in.microbatches), words)) continue;
      ASSERT_TRUE(evaluator.run(words).fits);
      for (int k = 0; k < 3; ++k, ++passes) {
        const plan::Score score = filler.pass(words);
        ASSERT_TRUE(score.runs);
        ASSERT_TRUE(score.fits) << "seed " << seed << ", dates " << i;
      }
    }
  }
  EXPECT_GT(passes, 100);
}

TEST(GapFiller, NeverMakesWorse) {
  Random random(33);
  for (int i = 0; i < 300; ++i) {
    const ScheduleProblem problem = odd_problem(random);
    const plan::Instance in(problem);
    plan::Evaluator evaluator(in);
    plan::Words words = plan::sequential_words(in);
    const plan::Score before = evaluator.run(words);
    ASSERT_TRUE(before.fits) << "case " << i;
    plan::GapFiller filler(in);
    const double value = filler.improve(words, before.value, 2, 0);
    ASSERT_LE(value, before.value);
    const plan::Score after = evaluator.run(words);
    ASSERT_TRUE(after.fits) << "case " << i;
    ASSERT_EQ(after.value, value) << "case " << i;
  }
}

}  // namespace
}  // namespace stagecraft
