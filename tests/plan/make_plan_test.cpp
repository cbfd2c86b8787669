#include "stagecraft/plan/make_plan.h"

#include <algorithm>
#include <random>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "benchmarks/gpt48.h"
#include "stagecraft/base/error.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/plan/synthesise.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/verify.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

PlanOptions rounds(int64_t count) {
  PlanOptions options;
  options.rounds = count;
  return options;
}

/// A model of random layers that has an answer within a second.
PlanProblem random_problem(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto number = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random() % 1001) / 1000;
  };
  PlanProblem problem;
  const auto layers = 4 + random() % 6;
  for (std::size_t l = 0; l < layers; ++l) {
    PlanLayer& layer = problem.layers.emplace_back();
    layer.cost.forward = number(1, 10);
    layer.cost.backward_input = number(0, 10);
    layer.cost.backward_weight = number(0, 10);
    layer.cost.memory_forward = number(1, 10);
    layer.cost.memory_freed_by_weight = number(0, 12);
    layer.cost.memory_freed_by_input =
        layer.cost.memory_forward - layer.cost.memory_freed_by_weight;
    layer.output_bytes = number(0, 1);
    layer.weights = number(0, 20);
    layer.state = number(0, 5);
    layer.peak_input = random() % 3 == 0 ? number(0, 5) : 0;
    if (random() % 4 == 0) layer.recompute = number(0, 5);
  }
  problem.ranks = same_ranks(static_cast<int32_t>(2 + random() % 2));
  problem.microbatches = static_cast<int32_t>(1 + random() % 6);
  problem.link.latency = number(0, 2);
  if (random() % 3 == 0) problem.link.bandwidth = number(1, 5);
  problem.input_gradient = random() % 2 == 0;
  if (random() % 4 == 0) {
    for (int32_t m = 0; m < problem.microbatches; ++m) problem.sizes.push_back(number(0.5, 2));
  }
  if (random() % 4 == 0) problem.ranks[0].speed = 2;
  return problem;
}

void expect_sound(const Plan& plan) {
  const Verdict verdict = verify(plan.schedule, StageGraph::chain(plan.schedule.num_stages()),
                                 {.mode = VerifyMode::kTraining});
  EXPECT_TRUE(verdict.ok());
  const StageComposer composer(plan.problem, plan.objective);
  const Evaluation again = evaluate_schedule(composer, plan.best.choice, plan.schedule);
  EXPECT_DOUBLE_EQ(again.value(plan.objective), plan.best.value);
  for (std::size_t r = 0; r < plan.problem.ranks.size(); ++r) {
    const double memory = plan.problem.ranks[r].memory.value_or(1e300);
    EXPECT_LE(again.peaks[r], memory * (1 + 1e-9)) << "rank " << r;
  }
  EXPECT_GE(plan.best.value, plan.best.bound.value * (1 - 1e-9));
  EXPECT_GE(plan.best.value, plan.any_split.value * (1 - 1e-9));
  EXPECT_EQ(plan.schedule.placement(), place_stages(plan.best.choice, plan.problem.num_ranks()));
}

TEST(MakePlan, IsSoundForRandomModels) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    SCOPED_TRACE(seed);
    PlanProblem problem = random_problem(seed);
    const PlanOptions options = rounds(4);
    const Plan free = make_plan(problem, options);
    expect_sound(free);
    const StageComposer composer(problem);
    const std::optional<LeastMemory> least = least_memory(composer, options.space);
    ASSERT_TRUE(least);
    for (const double factor : {1.0 + 1e-9, 1.2, 2.0}) {
      SCOPED_TRACE(factor);
      for (PlanRank& rank : problem.ranks) rank.memory = least->memory * factor;
      expect_sound(make_plan(problem, options));
    }
  }
}

// Every split, every recompute: the needed memory of the fullest rank.
double least_by_trying_all(const PlanProblem& problem, int32_t stages_per_rank = 1,
                           PlacementStyle placement = PlacementStyle::kLoop) {
  const StageComposer composer(problem);
  const auto n = static_cast<uint32_t>(problem.layers.size());
  const auto stages = static_cast<std::size_t>(problem.num_ranks() * stages_per_rank);
  double best = 1e300;
  for (uint32_t mask = 0; mask < (1U << (n - 1)); ++mask) {
    PlanChoice choice{.stages_per_rank = stages_per_rank, .placement = placement, .begins = {0}};
    for (uint32_t i = 1; i < n; ++i) {
      if ((mask >> (i - 1)) & 1U) choice.begins.push_back(static_cast<int32_t>(i));
    }
    if (choice.begins.size() != stages) continue;
    for (uint32_t again = 0; again < (1U << stages); ++again) {
      choice.recompute.clear();
      for (std::size_t s = 0; s < stages; ++s) choice.recompute.push_back((again >> s) & 1U);
      const std::vector<double> needs = memory_needs(composer, choice);
      best = std::min(best, *std::max_element(needs.begin(), needs.end()));
    }
  }
  return best;
}

TEST(LeastMemory, EqualsBruteForceForOneStageARank) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE(seed);
    PlanProblem problem = random_problem(seed);
    PlanOptions options = rounds(1);
    options.space.stages_per_rank = {1};
    const std::optional<LeastMemory> least = least_memory(StageComposer(problem), options.space);
    ASSERT_TRUE(least);
    EXPECT_DOUBLE_EQ(least->memory, least_by_trying_all(problem));
    for (PlanRank& rank : problem.ranks) rank.memory = least->memory * 0.999;
    EXPECT_THROW(make_plan(problem, options), DoesNotFit);
  }
}

TEST(LeastMemory, EqualsBruteForceForTwoStagesARank) {
  int compared = 0;
  for (uint64_t seed = 1; seed <= 120; ++seed) {
    PlanProblem problem = random_problem(seed);
    if (problem.num_ranks() > 3) problem.ranks.resize(3);
    if (problem.layers.size() > 9) problem.layers.resize(9);
    for (const PlacementStyle placement : {PlacementStyle::kLoop, PlacementStyle::kV}) {
      SCOPED_TRACE(std::to_string(seed) + (placement == PlacementStyle::kV ? " v" : " loop"));
      SearchSpace space{.stages_per_rank = {2}, .placements = {placement}};
      const StageComposer composer(problem);
      const std::optional<LeastMemory> least = least_memory(composer, space);
      if (static_cast<int32_t>(problem.layers.size()) < 2 * problem.num_ranks()) {
        EXPECT_FALSE(least);
        continue;
      }
      ASSERT_TRUE(least);
      EXPECT_DOUBLE_EQ(least->memory, least_by_trying_all(problem, 2, placement));
      const std::vector<double> needs = memory_needs(composer, least->choice);
      EXPECT_DOUBLE_EQ(*std::max_element(needs.begin(), needs.end()), least->memory);
      ++compared;
    }
  }
  EXPECT_GE(compared, 50);
}

// The best that synthesise finds over all splits bounds the optimum from above.
TEST(AnySplitBound, IsNotAboveTheBestOfAllSplits) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE(seed);
    PlanProblem problem = random_problem(seed);
    problem.layers.resize(std::min<std::size_t>(problem.layers.size(), 6));
    for (PlanRank& rank : problem.ranks) rank.speed = 1;
    const StageComposer unlimited(problem);
    const SearchSpace one{.stages_per_rank = {1}};
    const double memory = 1.3 * least_memory(unlimited, one)->memory;
    for (const bool capped : {false, true}) {
      for (PlanRank& rank : problem.ranks) {
        rank.memory = capped ? std::optional(memory) : std::nullopt;
      }
      const StageComposer composer(problem);
      const double bound = bound_any_split(composer, {1}, true).value;
      const auto n = static_cast<uint32_t>(problem.layers.size());
      const auto ranks = static_cast<std::size_t>(problem.num_ranks());
      for (uint32_t mask = 0; mask < (1U << (n - 1)); ++mask) {
        PlanChoice choice{.begins = {0}};
        for (uint32_t i = 1; i < n; ++i) {
          if ((mask >> (i - 1)) & 1U) choice.begins.push_back(static_cast<int32_t>(i));
        }
        if (choice.begins.size() != ranks) continue;
        for (uint32_t again = 0; again < (1U << ranks); ++again) {
          choice.recompute.clear();
          for (std::size_t r = 0; r < ranks; ++r) choice.recompute.push_back((again >> r) & 1U);
          const std::optional<double> value = quick_score(composer.compose(choice), 3);
          if (!value) continue;
          EXPECT_GE(*value, bound * (1 - 1e-9)) << mask << ' ' << again;
        }
      }
    }
  }
}

TEST(MakePlan, IsNoWorseThanAnyBuiltInScheduleThatFits) {
  const PlanProblem problem = gpt48(4, 8, 14000);
  const Plan plan = make_plan(problem, rounds(6));
  expect_sound(plan);
  const StageComposer composer(problem);
  const SearchSpace space;
  int compared = 0;
  for (const ScheduleKind& kind : schedule_kinds()) {
    for (const int32_t per_rank : {1, 2}) {
      if (!kind.has_backward || !kind.takes({.p = 4, .l = per_rank, .m = 8})) continue;
      const Schedule schedule =
          kind.build({.ranks = 4, .microbatches = 8, .stages_per_rank = per_rank});
      PlanChoice choice{.stages_per_rank = per_rank};
      choice.begins = equal_parts(50, 4 * per_rank);
      choice.recompute.assign(choice.begins.size(), false);
      if (!(schedule.placement() == place_stages(choice, 4))) choice.placement = PlacementStyle::kV;
      const Evaluation result = evaluate_schedule(composer, choice, schedule);
      if (!result.fits) continue;
      EXPECT_GE(result.makespan, plan.best.value / 1.005) << kind.name;
      ++compared;
    }
  }
  EXPECT_GE(compared, 4);
}

TEST(MakePlan, DependsOnTheSeedAlone) {
  const PlanProblem problem = gpt48(4, 8, 8000);
  const Plan first = make_plan(problem, rounds(5));
  const Plan second = make_plan(problem, rounds(5));
  EXPECT_EQ(first.schedule, second.schedule);
  EXPECT_EQ(first.best.choice, second.best.choice);
  EXPECT_EQ(to_text(first), to_text(second));
}

TEST(MakePlan, PrefersABuiltInScheduleThatIsAsGood) {
  // One rank: every order takes the same time.
  PlanProblem problem = gpt48(1, 4);
  const Plan plan = make_plan(problem, rounds(3));
  EXPECT_TRUE(plan.best.built_in);
  PlanOptions never = rounds(3);
  never.prefer_built_in = -1;
  EXPECT_GE(make_plan(problem, never).best.value, plan.best.value / 1.005);
}

TEST(MakePlan, GivesThePlanSoFarWhenCancelled) {
  std::atomic<bool> cancel = true;
  PlanOptions options;
  options.cancel = &cancel;
  options.time_limit = std::chrono::hours(1);
  const Plan plan = make_plan(gpt48(8, 64, 6500), options);
  EXPECT_TRUE(plan.interrupted);
  expect_sound(plan);
  EXPECT_THAT(to_text(plan), testing::HasSubstr("interrupted"));
}

TEST(MakePlan, ReportsProgress) {
  std::vector<double> values;
  PlanOptions options = rounds(3);
  options.progress = [&](const PlanProgress& progress) { values.push_back(progress.value); };
  const Plan plan = make_plan(gpt48(4, 8), options);
  ASSERT_FALSE(values.empty());
  EXPECT_TRUE(std::is_sorted(values.rbegin(), values.rend()));
  EXPECT_EQ(values.back(), plan.best.value);
}

TEST(MakePlan, ReordersMicrobatchesIfAsked) {
  PlanProblem problem;
  for (int l = 0; l < 4; ++l) {
    PlanLayer& layer = problem.layers.emplace_back();
    layer.cost = {.forward = 1000,
                  .backward_input = 1000,
                  .backward_weight = 800,
                  .memory_forward = 100,
                  .memory_freed_by_input = 60,
                  .memory_freed_by_weight = 40};
  }
  problem.link.latency = 20;
  problem.microbatches = 8;
  problem.sizes = {2.0, 0.3, 1.4, 0.5, 1.8, 0.4, 0.9, 0.7};
  problem.ranks = same_ranks(4, 780);
  PlanOptions options = rounds(20);
  options.space.stages_per_rank = {1};
  options.space.recompute = RecomputeChoice::kNone;
  const Plan given = make_plan(problem, options);
  options.reorder = true;
  const Plan reordered = make_plan(problem, options);
  expect_sound(reordered);
  EXPECT_LT(reordered.best.value, given.best.value);
  EXPECT_EQ(reordered.problem.sizes, problem.sizes);
}

TEST(MakePlan, UsesFasterRanksForMoreWork) {
  PlanProblem problem = gpt48(4, 16);
  problem.ranks[2].speed = 3;
  const Plan plan = make_plan(problem, rounds(4));
  expect_sound(plan);
  const StageComposer composer(problem);
  std::vector<double> work(4, 0);
  for (int32_t s = 0; s < plan.best.choice.num_stages(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    const int32_t end =
        s + 1 < plan.best.choice.num_stages() ? plan.best.choice.begins[at + 1] : 50;
    work[plan.schedule.placement().ranks()[StageId(s)].position()] +=
        composer.work(plan.best.choice.begins[at], end);
  }
  for (const std::size_t other : {0, 1, 3}) EXPECT_GT(work[2], 1.5 * work[other]);
}

TEST(MakePlan, RefusesByName) {
  PlanOptions options = rounds(1);
  EXPECT_ERROR(make_plan(gpt48(51, 4), options), ArgumentError,
               "51 ranks with 1 stage a rank are 51 stages, but the model has 50 layers");
  options.space.stages_per_rank = {};
  EXPECT_ERROR(make_plan(gpt48(2, 4), options), ArgumentError, "number of stages a rank");
  options.space.stages_per_rank = {0};
  EXPECT_ERROR(make_plan(gpt48(2, 4), options), ArgumentError, "at least one stage");
  PlanProblem problem = gpt48(3, 4);
  problem.layers.resize(4);
  EXPECT_ERROR(plan_schedule_only(problem, rounds(1)), ArgumentError,
               "4 stages cannot be shared out to 3 ranks evenly");
}

TEST(DoesNotFit, SaysWhatLacksAndWhatWouldHelp) {
  const auto lines = [](const PlanProblem& problem) {
    try {
      make_plan(problem, rounds(1));
    } catch (const DoesNotFit& error) {
      return error.lines();
    }
    return std::vector<std::string>();
  };
  PlanProblem problem = gpt48(8, 64, 2000);
  std::vector<std::string> text = lines(problem);
  ASSERT_EQ(text.size(), 3U);
  EXPECT_THAT(text[0], testing::MatchesRegex(
                           "does not fit: rank [0-9] lacks [0-9.]+ for its weights alone "
                           "\\(stages? .*: [0-9]+ with gradients and the optimizer's state, 2000 "
                           "given, [0-9]+ needed for one microbatch\\)"));
  EXPECT_THAT(text[1], testing::MatchesRegex(
                           "does not fit even with recompute; the smallest memory that fits 8 "
                           "ranks is ([0-9]+) a rank \\(plan with --memory [0-9]+\\)"));
  EXPECT_THAT(text[2], testing::MatchesRegex("does not fit: [0-9]+ ranks of 2000 would do"));
  const double least = std::stod(text[1].substr(text[1].rfind(' ')));
  EXPECT_NO_THROW(make_plan(gpt48(8, 64, least), rounds(1)));

  problem = gpt48(8, 64, 700);
  text = lines(problem);
  ASSERT_FALSE(text.empty());
  EXPECT_EQ(text[0],
            "does not fit: layer 49 (\"head\") alone needs 820, and no rank has more than 700");

  problem = gpt48(8, 64, 2000);
  for (PlanRank& rank : problem.ranks) *rank.memory *= 1048576;
  for (PlanLayer& layer : problem.layers) layer.weights *= 1048576;
  problem.units.bytes = true;
  text = lines(problem);
  ASSERT_EQ(text.size(), 3U);
  EXPECT_THAT(text[0], testing::HasSubstr("1.95 GiB given"));
  EXPECT_THAT(text[1], testing::MatchesRegex(".* is [0-9.]+ GB a rank \\(plan with --memory "
                                             "[0-9.]+GB\\)"));
}

TEST(MemoryCurve, IsMonotone) {
  PlanOptions options = rounds(2);
  const std::vector<CurvePoint> curve = memory_curve(gpt48(4, 8, 9000), options, 4);
  ASSERT_GE(curve.size(), 2U);
  for (std::size_t i = 1; i < curve.size(); ++i) {
    EXPECT_GT(curve[i].memory, curve[i - 1].memory);
    EXPECT_LE(curve[i].value, curve[i - 1].value);
  }
}

TEST(PlanText, HasTheTableTheStagesAndTheBounds) {
  const Plan plan = make_plan(gpt48(4, 8, 9000), rounds(3));
  const std::string text = to_text(plan);
  EXPECT_THAT(text, testing::HasSubstr("50 layers (embedding, 48 alike, head), 4 ranks, 8 "
                                       "microbatches. All work shared out evenly: 2776."));
  EXPECT_THAT(text, testing::HasSubstr("1F1B, equal layers"));
  EXPECT_THAT(text, testing::HasSubstr("\n*"));
  EXPECT_THAT(text, testing::HasSubstr("No order of these stages can take less than"));
  EXPECT_THAT(text, testing::HasSubstr("no split of this model for 4 ranks less than"));
  EXPECT_THAT(text, testing::HasSubstr("embedding (0)"));
}

}  // namespace
}  // namespace stagecraft
