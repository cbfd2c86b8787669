#include <algorithm>
#include <map>
#include <random>
#include <set>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/plan/unshard_choice.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/verify.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

/// Layers of weights 2 with gradients 2, an optimizer's state of 4, and a gather of 1.
PlanProblem sharded_problem(int32_t layers, int32_t ranks, ShardKind kind, int32_t replicas = 4) {
  PlanProblem problem;
  for (int32_t l = 0; l < layers; ++l) {
    problem.layers.push_back({.weights = 4, .state = 4, .gradients = 2, .gather = 1});
  }
  problem.ranks = same_ranks(ranks);
  problem.microbatches = 4;
  problem.sharding = {.replicas = kind == ShardKind::kNone ? 1 : replicas, .kind = kind};
  return problem;
}

PlanOptions in_rounds(std::vector<int32_t> stages_per_rank, int64_t rounds = 3) {
  PlanOptions options;
  options.rounds = rounds;
  options.space.stages_per_rank = std::move(stages_per_rank);
  return options;
}

PlanProblem random_sharded(uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto number = [&](double least, double most) {
    return least + (most - least) * static_cast<double>(random() % 1001) / 1000;
  };
  PlanProblem problem;
  const auto layers = 4 + random() % 5;
  for (std::size_t l = 0; l < layers; ++l) {
    PlanLayer& layer = problem.layers.emplace_back();
    layer.cost.forward = number(1, 10);
    layer.cost.backward_input = number(0, 10);
    layer.cost.backward_weight = number(0, 10);
    layer.cost.memory_forward = number(1, 10);
    layer.cost.memory_freed_by_weight = number(0, layer.cost.memory_forward);
    layer.cost.memory_freed_by_input =
        layer.cost.memory_forward - layer.cost.memory_freed_by_weight;
    layer.gradients = number(0, 10);
    // Some have frozen parameters, some gradients larger than the weights.
    layer.weights = *layer.gradients + number(0, 20);
    layer.state = number(0, 20);
    layer.gather = number(0, 5);
  }
  problem.ranks = same_ranks(2);
  problem.microbatches = static_cast<int32_t>(2 + random() % 4);
  problem.link.latency = number(0, 2);
  problem.sharding.replicas = static_cast<int32_t>(2 + random() % 3);
  problem.sharding.kind = random() % 3 == 0   ? ShardKind::kOptimizer
                          : random() % 2 == 0 ? ShardKind::kGradients
                                              : ShardKind::kParameters;
  return problem;
}

/// A stage's sums over its layers, and what the page on sharding says that replicas hold of them.
struct Counted {
  double pieces = 0;
  double gathered = 0;
  double gradients = 0;
  double activations = 0;
  double freed_by_input = 0;
  double input_bytes = 0;
  double gather = 0;
};

Counted count_stage(const PlanProblem& problem, int32_t first, int32_t end) {
  Counted stage;
  const double r = problem.sharding.replicas;
  const ShardKind kind = problem.sharding.kind;
  for (int32_t l = first; l < end; ++l) {
    const PlanLayer& layer = problem.layers[static_cast<std::size_t>(l)];
    const double gradients = layer.gradients.value();
    const double parameters = layer.weights - gradients;
    const double frozen = std::max(0.0, parameters - gradients);
    stage.pieces += kind == ShardKind::kNone ? layer.state : layer.state / r;
    if (kind == ShardKind::kNone || kind == ShardKind::kOptimizer) {
      stage.pieces += layer.weights;
    } else if (kind == ShardKind::kGradients) {
      stage.pieces += parameters + gradients / r + gradients;
    } else {
      stage.pieces += frozen + (parameters - frozen) / r + gradients / r;
      stage.gathered += parameters - frozen;
      stage.gradients += gradients;
    }
    stage.activations += layer.cost.memory_forward;
    stage.freed_by_input += layer.cost.memory_freed_by_input;
    stage.gather += layer.gather.value();
  }
  stage.input_bytes = first == 0 ? problem.input_bytes
                                 : problem.layers[static_cast<std::size_t>(first) - 1].output_bytes;
  return stage;
}

std::vector<Counted> count_stages(const PlanProblem& problem, const PlanChoice& choice) {
  std::vector<Counted> stages;
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    const auto end = s + 1 < choice.begins.size() ? choice.begins[s + 1]
                                                  : static_cast<int32_t>(problem.layers.size());
    stages.push_back(count_stage(problem, choice.begins[s], end));
  }
  return stages;
}

/// The most that a rank holds, by going through its list. At most two stages a rank: whole
/// gradients of both are there before those of the first are surely reduced.
double count_peak(const PlanProblem& problem, const PlanChoice& choice, const Schedule& schedule,
                  Rank rank) {
  const std::vector<Counted> stages = count_stages(problem, choice);
  double held = 0;
  for (const StageId stage : schedule.placement().stages(rank)) {
    held += stages[stage.position()].pieces + stages[stage.position()].gradients;
  }
  double peak = held;
  for (const Action action : schedule.actions(rank)) {
    if (action.is_idle() || action.is_overlap() || action.type() == ActionType::kReduceGrad) {
      continue;
    }
    const Counted& stage = stages[action.stage().position()];
    const bool again = choice.recompute[action.stage().position()];
    const double kept = again ? stage.input_bytes : stage.activations;
    switch (action.type()) {
      case ActionType::kUnshard:
        held += stage.gathered;
        break;
      case ActionType::kReshard:
        held -= stage.gathered;
        break;
      case ActionType::kForward:
        held += kept;
        break;
      case ActionType::kBackward:
        if (again) peak = std::max(peak, held + stage.activations);
        held -= kept;
        break;
      case ActionType::kBackwardInput:
        held -= stage.freed_by_input;
        break;
      case ActionType::kBackwardWeight:
        held -= stage.activations - stage.freed_by_input;
        break;
      default:
        break;
    }
    peak = std::max(peak, held);
  }
  return peak;
}

/// The time of a step from costs that are summed here, without what the planner knows.
double count_time(const PlanProblem& problem, const PlanChoice& choice, const Schedule& schedule) {
  CostModel costs;
  costs.link = problem.link;
  for (const Counted& stage : count_stages(problem, choice)) costs.gather.push_back(stage.gather);
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    const auto end = s + 1 < choice.begins.size() ? choice.begins[s + 1]
                                                  : static_cast<int32_t>(problem.layers.size());
    StageCost& cost = costs.stages.emplace_back();
    cost = {.forward = 0, .backward_input = 0, .backward_weight = 0};
    double whole = 0;
    for (int32_t l = choice.begins[s]; l < end; ++l) {
      const StageCost& layer = problem.layers[static_cast<std::size_t>(l)].cost;
      cost.forward += layer.forward;
      cost.backward_input += layer.backward_input;
      cost.backward_weight += layer.backward_weight;
      whole += layer.backward_input + layer.backward_weight;
      if (choice.recompute[s]) whole += layer.forward;
    }
    cost.backward = whole;
  }
  return simulate(schedule, costs).makespan;
}

void expect_counted(const Plan& plan) {
  const PlanProblem& problem = plan.problem;
  const PlanChoice& choice = plan.best.choice;
  VerifyOptions how{.mode = VerifyMode::kTraining};
  if (problem.sharding.has_gathers()) how.max_active_stages = choice.most_active();
  EXPECT_TRUE(verify(plan.schedule, StageGraph::chain(plan.schedule.num_stages()), how).ok());
  EXPECT_NEAR(plan.best.value, count_time(problem, choice, plan.schedule), 1e-9 * plan.best.value);
  for (int32_t r = 0; r < problem.num_ranks(); ++r) {
    const auto at = static_cast<std::size_t>(r);
    const double peak = count_peak(problem, choice, plan.schedule, Rank(r));
    // A recompute has the activations of its largest layer in its first forward, too.
    const double slack = choice.recomputes() ? 10 : 1e-9 * peak;
    EXPECT_NEAR(plan.best.result.peaks[at], peak, slack) << "rank " << r;
    EXPECT_LE(peak, problem.ranks[at].memory.value_or(1e300) * (1 + 1e-9));
  }
  EXPECT_GE(plan.best.value, plan.best.bound.value * (1 - 1e-9));
  EXPECT_GE(plan.best.value, plan.any_split.value * (1 - 1e-9));
  const SavedPlan saved = to_saved(plan);
  const SavedPlan back = parse_plan_file(to_plan_file(saved));
  EXPECT_EQ(back.schedule, plan.schedule);
  EXPECT_EQ(back.lookahead, plan.best.lookahead);
  const Simulation simulated = simulate(back.schedule, parse_plan_costs(to_plan_file(saved)));
  EXPECT_NEAR(simulated.makespan, plan.best.value, 1e-9 * plan.best.value);
}

TEST(ShardedPlan, CountsWhatReplicasHold) {
  const PlanLayer layer{.weights = 200, .state = 240, .gradients = 80};
  const auto held = [&](ShardKind kind) {
    return held_memory(layer, {.replicas = 4, .kind = kind});
  };
  EXPECT_EQ(held(ShardKind::kNone).sum(), 440);
  EXPECT_EQ(held(ShardKind::kOptimizer).sum(), 200 + 60);
  // Whole gradients are there until they are reduced.
  EXPECT_EQ(held(ShardKind::kGradients).sum(), 200 + 20 + 60);
  // 40 of the parameters have no gradient: they are frozen, and stay whole.
  EXPECT_EQ(held(ShardKind::kParameters).pieces, 40 + 20 + 20 + 60);
  EXPECT_EQ(held(ShardKind::kParameters).gathered, 80);
  EXPECT_EQ(held(ShardKind::kParameters).gradients, 80);
}

// Such a layer has nothing to shard, so its gradients need not be given.
TEST(ShardedPlan, TakesLayersWithoutWeights) {
  for (const ShardKind kind : {ShardKind::kGradients, ShardKind::kParameters}) {
    PlanProblem problem = random_sharded(1);
    problem.sharding = {.replicas = 2, .kind = kind};
    problem.layers[1].weights = 0;
    problem.layers[1].state = 0;
    problem.layers[1].gradients.reset();
    EXPECT_NO_THROW(make_plan(problem, in_rounds({1}, 1))) << to_string(kind);
  }
}

TEST(ShardedPlan, IsWhatSimulatorAndAHandCountSay) {
  int sharded = 0;
  int fewer_active = 0;
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    SCOPED_TRACE(seed);
    PlanProblem problem = random_sharded(seed);
    sharded += problem.sharding.has_gathers() ? 1 : 0;
    const PlanOptions options = in_rounds({1, 2});
    expect_counted(make_plan(problem, options));
    const std::optional<LeastMemory> least = least_memory(StageComposer(problem), options.space);
    ASSERT_TRUE(least);
    for (const double factor : {1.0 + 1e-9, 1.2}) {
      SCOPED_TRACE(factor);
      for (PlanRank& rank : problem.ranks) rank.memory = least->memory * factor;
      const Plan plan = make_plan(problem, options);
      expect_counted(plan);
      fewer_active += plan.best.choice.active_stages == 1 ? 1 : 0;
    }
  }
  EXPECT_GE(sharded, 5);
  EXPECT_GE(fewer_active, 2);
}

TEST(ShardedPlan, LeastMemoryEqualsBruteForce) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    PlanProblem problem = random_sharded(seed);
    problem.layers.resize(std::min<std::size_t>(problem.layers.size(), 6));
    const StageComposer composer(problem);
    const auto n = static_cast<uint32_t>(problem.layers.size());
    for (const int32_t per_rank : {1, 2}) {
      for (const PlacementStyle placement : {PlacementStyle::kLoop, PlacementStyle::kV}) {
        SCOPED_TRACE(fmt::format("{}, {} a rank, {}", seed, per_rank, to_string(placement)));
        const SearchSpace space{.stages_per_rank = {per_rank},
                                .placements = {placement},
                                .recompute = RecomputeChoice::kNone};
        double best = 1e300;
        for (uint32_t mask = 0; mask < (1U << (n - 1)); ++mask) {
          PlanChoice choice{.stages_per_rank = per_rank, .placement = placement, .begins = {0}};
          for (uint32_t i = 1; i < n; ++i) {
            if ((mask >> (i - 1)) & 1U) choice.begins.push_back(static_cast<int32_t>(i));
          }
          if (choice.begins.size() != static_cast<std::size_t>(2 * per_rank)) continue;
          choice.recompute.assign(choice.begins.size(), false);
          // By hand: all pieces and gradients, the largest stage's weights, and one microbatch.
          const std::vector<Counted> stages = count_stages(problem, choice);
          const Placement where = place_stages(choice, 2);
          double fullest = 0;
          for (int32_t r = 0; r < 2; ++r) {
            double need = 0;
            double gathered = 0;
            for (const StageId stage : where.stages(Rank(r))) {
              const Counted& one = stages[stage.position()];
              need += one.pieces + one.gradients + one.activations;
              gathered = std::max(gathered, one.gathered);
            }
            fullest = std::max(fullest, need + gathered);
          }
          best = std::min(best, fullest);
        }
        const std::optional<LeastMemory> least = least_memory(composer, space);
        ASSERT_TRUE(least);
        EXPECT_DOUBLE_EQ(least->memory, best);
      }
    }
  }
}

/// Every split, built-in schedule, number of active stages and lookahead that fits, by hand.
TEST(ShardedPlan, IsNoWorseThanAnyBuiltInScheduleAndAnyUnsharding) {
  for (uint64_t seed = 100; seed < 112; ++seed) {
    SCOPED_TRACE(seed);
    PlanProblem problem = random_sharded(seed);
    problem.layers.resize(std::min<std::size_t>(problem.layers.size(), 6));
    problem.sharding.kind = ShardKind::kParameters;
    PlanOptions options = in_rounds({1, 2}, 6);
    options.space.recompute = RecomputeChoice::kNone;
    const double memory = 1.3 * least_memory(StageComposer(problem), options.space)->memory;
    for (PlanRank& rank : problem.ranks) rank.memory = memory;
    const Plan plan = make_plan(problem, options);
    expect_counted(plan);
    const auto n = static_cast<uint32_t>(problem.layers.size());
    double best = 1e300;
    for (const ScheduleKind& kind : schedule_kinds()) {
      for (const int32_t per_rank : {1, 2}) {
        const Dims dims{.p = 2, .l = per_rank, .m = problem.microbatches};
        if (!kind.has_backward || !kind.takes(dims)) continue;
        const Schedule built = kind.build(
            {.ranks = 2, .microbatches = problem.microbatches, .stages_per_rank = per_rank});
        for (uint32_t mask = 0; mask < (1U << (n - 1)); ++mask) {
          PlanChoice choice{.stages_per_rank = per_rank, .begins = {0}};
          for (uint32_t i = 1; i < n; ++i) {
            if ((mask >> (i - 1)) & 1U) choice.begins.push_back(static_cast<int32_t>(i));
          }
          if (choice.begins.size() != static_cast<std::size_t>(2 * per_rank)) continue;
          choice.recompute.assign(choice.begins.size(), false);
          for (int32_t active = 1; active <= per_rank; ++active) {
            for (const Lookahead lookahead : {Lookahead::kFull, Lookahead::kAuto}) {
              const Schedule lists = shard_stages(built, active, lookahead);
              bool fits = true;
              for (int32_t r = 0; r < 2; ++r) {
                fits = fits && count_peak(problem, choice, lists, Rank(r)) <= memory * (1 + 1e-9);
              }
              if (fits) best = std::min(best, count_time(problem, choice, lists));
            }
          }
        }
      }
    }
    EXPECT_LE(plan.best.value, best * 1.01);
  }
}

TEST(ShardedPlan, FitsWhereWholeReplicasDoNot) {
  // A rank has 4 layers of 8: whole replicas hold 32, sharded ones 8 of pieces, whole gradients 8.
  const double memory = 4.0 + 8 + 8 + 8;
  const auto plan = [&](ShardKind kind) {
    PlanProblem problem = sharded_problem(8, 2, kind);
    for (PlanRank& rank : problem.ranks) rank.memory = memory;
    PlanOptions options = in_rounds({1});
    options.space.recompute = RecomputeChoice::kNone;
    return make_plan(problem, options);
  };
  EXPECT_ERROR(plan(ShardKind::kNone), DoesNotFit, "lacks");
  const Plan fits = plan(ShardKind::kParameters);
  EXPECT_EQ(fits.best.result.peaks[0], memory);
  // Whole weights and gradients, and a quarter of the state, are 20: two microbatches fit.
  EXPECT_LT(plan(ShardKind::kOptimizer).best.value, fits.best.value);
}

TEST(ShardedPlan, GathersCostTimeAndTheirCostIsTheOnlyDifference) {
  const auto time = [&](ShardKind kind, double gather) {
    PlanProblem problem = sharded_problem(8, 2, kind);
    for (PlanLayer& layer : problem.layers) layer.gather = gather;
    return make_plan(problem, in_rounds({1})).best.value;
  };
  const double whole = time(ShardKind::kNone, 3);
  EXPECT_EQ(time(ShardKind::kOptimizer, 3), whole);
  EXPECT_EQ(time(ShardKind::kGradients, 3), whole);
  EXPECT_EQ(time(ShardKind::kParameters, 0), whole);
  // The first rank waits for its four layers; later ranks gather in the meantime.
  EXPECT_EQ(time(ShardKind::kParameters, 3), whole + 12);
}

TEST(ShardedPlan, UnshardsFewerStagesOnlyForMemory) {
  PlanProblem problem = sharded_problem(8, 2, ShardKind::kParameters);
  PlanOptions options = in_rounds({2});
  options.space.recompute = RecomputeChoice::kNone;
  const Plan free = make_plan(problem, options);
  EXPECT_EQ(free.best.choice.most_active(), 2);
  const double least = least_memory(StageComposer(problem), options.space)->memory;
  for (PlanRank& rank : problem.ranks) rank.memory = least;
  const Plan tight = make_plan(problem, options);
  EXPECT_EQ(tight.best.choice.most_active(), 1);
  EXPECT_THAT(tight.best.lookahead, testing::ElementsAre(1, 1));
  EXPECT_GT(tight.best.value, free.best.value);
  EXPECT_THAT(to_text(tight),
              testing::HasSubstr("at most 1 stage of a rank unsharded at a time, lookahead 1,1."));
  // What is given is kept.
  for (PlanRank& rank : problem.ranks) rank.memory = std::nullopt;
  problem.sharding.max_active_stages = 1;
  const Plan given = make_plan(problem, options);
  expect_counted(given);
  EXPECT_EQ(given.best.choice.most_active(), 1);
  EXPECT_GE(given.best.value, free.best.value);
  problem.sharding.max_active_stages = 2;
  problem.sharding.lookahead = std::vector<int32_t>{1, 2};
  const Plan ahead = make_plan(problem, options);
  EXPECT_THAT(ahead.best.lookahead, testing::ElementsAre(1, 2));
  EXPECT_EQ(ahead.schedule,
            shard_stages(without_unshards(ahead.schedule), 2, std::vector<int32_t>{1, 2}));
}

TEST(ShardedPlan, TakesTheLookaheadThatCostsNoTime) {
  PlanProblem problem = sharded_problem(8, 2, ShardKind::kParameters);
  for (PlanLayer& layer : problem.layers) layer.gather = 0;
  const Plan plan = make_plan(problem, in_rounds({2}));
  expect_counted(plan);
  const Schedule full = shard_stages(without_unshards(plan.schedule), 2, Lookahead::kFull);
  const StageComposer composer(problem);
  EXPECT_DOUBLE_EQ(evaluate_schedule(composer, plan.best.choice, full).makespan, plan.best.value);
  EXPECT_THAT(plan.best.lookahead, testing::ElementsAre(1, 1));
}

/// With four stages a rank, one active: at most two stages have whole gradients.
TEST(ShardedPlan, CountsGradientsThatAreNotReduced) {
  PlanProblem problem = sharded_problem(8, 2, ShardKind::kParameters);
  problem.sharding.max_active_stages = 1;
  const StageComposer composer(problem);
  PlanChoice choice{.stages_per_rank = 4, .whole_backward = true, .active_stages = 1};
  for (int32_t l = 0; l < 8; ++l) choice.begins.push_back(l);
  choice.recompute.assign(8, false);
  const auto peak = [&](const char* name) {
    const Schedule built =
        build_schedule(name, {.ranks = 2, .microbatches = 4, .stages_per_rank = 4});
    return evaluate_schedule(composer, choice, shard_stages(built, 1)).peaks[0];
  };
  // Four pieces of 2, the weights of one stage, activations of 4 stages and microbatches.
  EXPECT_EQ(peak("LoopedBFS"), 4 * 2 + 2 + 16 + 2 * 2);
  const Schedule interleaved =
      build_schedule("Interleaved1F1B", {.ranks = 2, .microbatches = 4, .stages_per_rank = 4});
  CostModel activations;
  const double most = simulate(interleaved, activations).ranks[0].peak_memory;
  EXPECT_EQ(peak("Interleaved1F1B"), 4 * 2 + 2 + most + 4 * 2);
}

TEST(ShardedPlan, BoundsCountWhatIsThereAllTheTime) {
  PlanProblem problem = sharded_problem(8, 2, ShardKind::kParameters);
  // Pieces take 8. Whole weights and whole gradients take up to 8 each. At any time a schedule has
  // at least 2 of the weights and 6 of the gradients.
  problem.ranks = same_ranks(2, 8 + 8 + 8 + 5);
  const PlanChoice choice{
      .stages_per_rank = 2, .begins = {0, 1, 2, 5}, .recompute = std::vector<bool>(4, false)};
  ScheduleProblem composed = StageComposer(problem).compose(choice);
  EXPECT_EQ(composed.ranks[0].fixed, 8 + 8 + 8);
  EXPECT_EQ(composed.ranks[0].passing, 8 + 8 - 2 - 6);
  const double bound = lower_bound(composed).value;
  const double tight = tight_bound(composed).value;
  for (RankLimit& rank : composed.ranks) rank.passing = 0;
  EXPECT_LT(bound, lower_bound(composed).value);
  for (RankLimit& rank : composed.ranks) rank.fixed -= 8;
  EXPECT_EQ(bound, lower_bound(composed).value);
  EXPECT_EQ(tight, tight_bound(composed).value);
}

TEST(ShardedPlan, NeedsThePartsOfTheMemory) {
  PlanProblem problem = sharded_problem(4, 2, ShardKind::kParameters);
  problem.layers[1].gather.reset();
  problem.layers[1].name = "mlp";
  EXPECT_ERROR(make_plan(problem), ArgumentError,
               "layer 1 (\"mlp\"): sharding parameters needs G, the time to gather");
  problem.sharding.kind = ShardKind::kGradients;
  EXPECT_NO_THROW(make_plan(problem, in_rounds({1}, 1)));
  problem.layers[2].gradients.reset();
  EXPECT_ERROR(make_plan(problem), ArgumentError,
               "layer 2: sharding gradients needs GRADS, the part of WEIGHTS that is gradients");
  problem.sharding.kind = ShardKind::kOptimizer;
  EXPECT_NO_THROW(make_plan(problem, in_rounds({1}, 1)));
  for (PlanLayer& layer : problem.layers) layer.state = 0;
  EXPECT_ERROR(make_plan(problem), ArgumentError, "needs STATE, and no layer has it");
  problem.layers[0].gradients = 5;
  EXPECT_ERROR(make_plan(problem), ArgumentError,
               "layer 0: GRADS is 5, but it is a part of WEIGHTS, which is 4");
  problem = sharded_problem(4, 2, ShardKind::kParameters, 1);
  EXPECT_ERROR(make_plan(problem), ArgumentError, "there is one replica");
  problem = sharded_problem(4, 2, ShardKind::kParameters);
  problem.sharding.lookahead = std::vector<int32_t>{1};
  EXPECT_ERROR(make_plan(problem), ArgumentError, "1 numbers, expected one for each of 2 ranks");
}

std::string edited(std::string text, const std::string& from, const std::string& to) {
  const std::size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos) << from;
  return text.replace(at, from.size(), to);
}

TEST(ShardedPlan, FileRefusesByName) {
  const Plan plan = make_plan(sharded_problem(8, 2, ShardKind::kParameters), in_rounds({2}));
  const std::string text = to_plan_file(to_saved(plan));
  EXPECT_EQ(to_plan_file(parse_plan_file(text)), text);
  EXPECT_EQ(parse_schedule(text), plan.schedule);
  EXPECT_ERROR(parse_plan_file(edited(text, "\"shard\":\"parameters\"", "\"shard\":\"all\"")),
               ArgumentError, "\"shard\": expected \"none\", \"optimizer\"");
  EXPECT_ERROR(parse_plan_file(edited(text, "\"replicas\":4", "\"replicas\":2")), ArgumentError,
               "\"peaks\" of rank 0");
  EXPECT_ERROR(parse_plan_file(edited(text, "\"max_active_stages\":2", "\"max_active_stages\":3")),
               ArgumentError, "\"max_active_stages\": expected a whole number from 1 to 2");
  EXPECT_ERROR(parse_plan_file(edited(text, "\"max_active_stages\":2", "\"max_active_stages\":1")),
               ArgumentError, "\"unshard_lookahead\": a lookahead is a number from 1 to 1");
  SavedPlan ahead = to_saved(plan);
  ahead.lookahead = ahead.lookahead == std::vector<int32_t>{1, 1} ? std::vector<int32_t>{2, 2}
                                                                  : std::vector<int32_t>{1, 1};
  EXPECT_ERROR(parse_plan_file(to_plan_file(ahead)), ArgumentError,
               "are not those of \"unshard_lookahead\"");
  SavedPlan plain = to_saved(plan);
  plain.schedule = without_unshards(plan.schedule);
  EXPECT_ERROR(parse_plan_file(to_plan_file(plain)), ArgumentError, "needs UNSHARD and RESHARD");
}

}  // namespace
}  // namespace stagecraft
