#include "stagecraft/runtime/measured_plan.h"

#include <algorithm>
#include <memory>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/cross_entropy_loss.h>
#include <ATen/ops/randint.h>

#include "cli/train/gpt.h"
#include "stagecraft/runtime/measure_link.h"
#include "stagecraft/runtime/measure_run.h"
#include "stagecraft/runtime/measured_memory.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/transport/local/local_world.h"

namespace stagecraft {
namespace {

constexpr int32_t kMicrobatches = 4;
constexpr int64_t kWidth = 16;

/// Four layers: embedding, two blocks, head. The head reads the embedding's weight.
ModelToPlan small_model() {
  const auto gpt = std::make_shared<Gpt>(
      GptSizes{.layers = 2, .width = kWidth, .heads = 2, .context = 8, .vocabulary = 32}, 3);
  ModelToPlan model;
  model.split = [gpt](const std::vector<std::string>& names) {
    Split split;
    for (const std::string& name : names) split.points.emplace_back(name, SplitPoint::kBeginning);
    if (names.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
    return gpt->cut(split);
  };
  model.layers = layer_names(model.split({}).graph());
  model.loss = [](const at::Tensor& logits, const at::Tensor& targets) {
    return at::cross_entropy_loss(logits.flatten(0, 1), targets.flatten());
  };
  at::manual_seed(5);
  for (int32_t m = 0; m < kMicrobatches; ++m) {
    model.batch.inputs.push_back({{at::randint(0, 32, {2, 8}, at::kLong)}, {}});
    model.batch.targets.emplace_back(at::randint(0, 32, {2, 8}, at::kLong));
    model.batch.weights.push_back(1.0 / kMicrobatches);
  }
  return model;
}

PlanProblem two_ranks() {
  PlanProblem problem;
  problem.ranks = same_ranks(2);
  problem.microbatches = kMicrobatches;
  problem.input_gradient = false;
  problem.units = {"ms", true};
  return problem;
}

MeasuredPlanOptions quick() {
  MeasuredPlanOptions options;
  options.search.rounds = 4;
  options.measure.warm_up = 1;
  options.measure.steps = 2;
  return options;
}

std::vector<at::Tensor> losses_of(const ModelToPlan& model, const SavedPlan& plan) {
  Pipeline run(model.split(plan.model.split_points),
               {.source = ScheduleSource::fixed(plan.schedule),
                .loss = model.loss,
                .seed = 1,
                .threads_per_rank = 1});
  for (std::size_t s = 0; s < plan.choice.recompute.size(); ++s) {
    if (plan.choice.recompute[s]) run.stage(StageId(static_cast<int32_t>(s))).set_recompute(true);
  }
  return run.step(model.batch, {.outputs = OutputMode::kNone}).losses;
}

void expect_losses_of_1f1b(const ModelToPlan& model, const SavedPlan& plan) {
  Pipeline plain(model.split({model.layers.at(1)}),
                 {.schedule = "1F1B", .loss = model.loss, .seed = 1, .threads_per_rank = 1});
  const std::vector<at::Tensor> expected =
      plain.step(model.batch, {.outputs = OutputMode::kNone}).losses;
  const std::vector<at::Tensor> losses = losses_of(model, plan);
  ASSERT_EQ(losses.size(), expected.size());
  for (std::size_t m = 0; m < losses.size(); ++m) EXPECT_TRUE(losses[m].equal(expected[m])) << m;
}

TEST(FitLink, FindsLatencyAndBandwidth) {
  const LinkCost link = fit_link({0, 1000, 3000}, {0.5, 0.6, 0.8});
  EXPECT_NEAR(link.latency, 0.5, 1e-12);
  EXPECT_NEAR(link.bandwidth.value(), 1e4, 1e-6);
}

TEST(FitLink, HasNoBandwidthIfSizesDoNotMatter) {
  const LinkCost link = fit_link({64, 4096}, {0.02, 0.02});
  EXPECT_DOUBLE_EQ(link.latency, 0.02);
  EXPECT_FALSE(link.bandwidth);
}

TEST(MeasureLink, GivesAllRanksTheSameCost) {
  std::vector<LinkCost> links(3);
  LocalWorld world(3);
  world.run([&](Transport& transport) {
    links[transport.rank().position()] =
        measure_link(transport, {4096}, Deadline::after(std::chrono::seconds(60)));
  });
  EXPECT_GT(links[0].latency + 4096 / links[0].bandwidth.value_or(1), 0);
  EXPECT_EQ(links[0], links[1]);
  EXPECT_EQ(links[0], links[2]);
  EXPECT_EQ(measure_local_link(1, {4096}), LinkCost());
}

TEST(MeasureLayers, CountsSkipConnectionsWhereTheyCross) {
  const ModelToPlan model = small_model();
  ASSERT_EQ(model.layers.size(), 3U);
  const std::vector<PlanLayer> layers = measure_layers(
      model.split(model.layers), model.loss, model.batch, model.layers, {.warm_up = 1, .steps = 1});
  // The hidden state of two rows of eight tokens, and the weight that the head reads.
  const double hidden = 2 * 8 * kWidth * 4;
  const double weight = 32 * kWidth * 4;
  for (std::size_t l = 0; l < 3; ++l) {
    EXPECT_GE(layers[l].output_bytes, hidden + weight) << l;
    EXPECT_GT(layers[l].cost.forward, 0) << l;
    // What replicas can divide: every parameter has a gradient, and AdamW two moments of it.
    EXPECT_GT(layers[l].gradients.value(), 0) << l;
    EXPECT_EQ(layers[l].weights, 2 * layers[l].gradients.value()) << l;
    EXPECT_EQ(layers[l].state, 2 * layers[l].gradients.value()) << l;
  }
  EXPECT_EQ(layers[1].output_bytes, layers[2].output_bytes);
  EXPECT_EQ(layers[3].output_bytes, 0);
}

TEST(MeasureRun, MeasuresWhatRan) {
  const ModelToPlan model = small_model();
  const Pipe pipe = model.split({model.layers.at(1)});
  const Schedule plain = build_schedule("1F1B", {2, kMicrobatches, 1});
  const MeasuredRun run =
      measure_run(pipe, plain, {false, true}, model.loss, model.batch, {.warm_up = 1, .steps = 2});
  ASSERT_EQ(run.stages.size(), 2U);
  EXPECT_GT(run.step, 0);
  for (const MeasuredStage& stage : run.stages) {
    EXPECT_GT(stage.forward.value(), 0);
    EXPECT_GT(stage.backward.value(), 0);
    EXPECT_FALSE(stage.backward_input);
  }
  // The second stage recomputes: it keeps less.
  EXPECT_LT(run.stages[1].memory_forward.value(), run.stages[0].memory_forward.value());
  for (const at::Tensor& parameter : pipe.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

StageMemory measured_memory(int64_t sent) {
  StageMemory memory;
  memory.of(ActionType::kForward) = {.is_measured = true, .change = 1000, .peak = 1200};
  memory.of(ActionType::kSendForward) = {.is_measured = true, .change = sent, .peak = 0};
  memory.of(ActionType::kBackward) = {.is_measured = true, .change = -900, .peak = 500};
  return memory;
}

TEST(RunMemory, WhatIsSentCountsForThePeakOnly) {
  MeasuredStage stage;
  detail::set_run_memory(stage, measured_memory(-100));
  EXPECT_EQ(stage.memory_forward, 900);
  EXPECT_EQ(stage.peak_forward, 300);
  EXPECT_EQ(stage.peak_input, 500);
  EXPECT_FALSE(stage.memory_input.has_value());
}

TEST(RunMemory, ASendThatWasMeasuredToAddAddsNothing) {
  MeasuredStage stage;
  detail::set_run_memory(stage, measured_memory(145'408));
  EXPECT_EQ(stage.memory_forward, 1000);
  EXPECT_EQ(stage.peak_forward, 200);
}

TEST(MeasuredPlan, RunsAndKeepsTheLossesOf1F1B) {
  const ModelToPlan model = small_model();
  const MeasuredPlan planned = plan_measured(model, two_ranks(), quick());
  ASSERT_GE(planned.trials.size(), 1U);
  EXPECT_LE(planned.trials.size(), 2U);
  EXPECT_GT(planned.trials.front().measured, 0);
  EXPECT_TRUE(planned.search);
  EXPECT_GE(planned.saved.predicted, planned.saved.bound * (1 - 1e-9));
  EXPECT_EQ(planned.saved.problem.layers.size(), 4U);
  // It is a plan like any other.
  EXPECT_EQ(parse_plan_file(to_plan_file(planned.saved)).predicted, planned.saved.predicted);
  expect_losses_of_1f1b(model, planned.saved);
}

TEST(MeasuredPlan, KeepsWithinTheMemoryOfTheRanks) {
  const ModelToPlan model = small_model();
  const MeasuredPlan free = plan_measured(model, two_ranks(), quick());
  PlanProblem problem = two_ranks();
  const double memory = 0.95 * *std::max_element(free.saved.peaks.begin(), free.saved.peaks.end());
  for (PlanRank& rank : problem.ranks) rank.memory = memory;
  const SavedPlan plan = plan_measured(model, problem, quick()).saved;
  const MeasuredRun run =
      measure_run(model.split(plan.model.split_points), plan.schedule, plan.choice.recompute,
                  model.loss, model.batch, {.warm_up = 1, .steps = 1});
  for (const double peak : run.peaks) EXPECT_LE(peak, memory);
  expect_losses_of_1f1b(model, plan);
  for (PlanRank& rank : problem.ranks) rank.memory = 1000;
  EXPECT_THROW(plan_measured(model, problem, quick()), DoesNotFit);
}

// Two replicas of one rank: the world has the ranks of both.
TEST(MeasuredPlan, PlansShardedReplicas) {
  std::vector<std::string> texts(2);
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const ModelToPlan model = small_model();
    MeasuredPlanOptions options = quick();
    options.transport = &transport;
    PlanProblem problem = two_ranks();
    problem.ranks.resize(1);
    problem.sharding = {.replicas = 2, .kind = ShardKind::kParameters};
    const MeasuredPlan planned = plan_measured(model, problem, options);
    EXPECT_TRUE(planned.trials.empty());
    texts[transport.rank().position()] = to_plan_file(planned.saved);
  });
  EXPECT_EQ(texts[0], texts[1]);
  const SavedPlan plan = parse_plan_file(texts[0]);
  EXPECT_EQ(plan.lookahead.size(), 1U);
  for (const PlanLayer& layer : plan.problem.layers) EXPECT_TRUE(layer.gather.has_value());
}

TEST(MeasuredPlan, AllRanksOfAWorldGetOnePlan) {
  std::vector<std::string> texts(2);
  std::vector<std::string> failures(2);
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const ModelToPlan model = small_model();
    MeasuredPlanOptions options = quick();
    options.transport = &transport;
    texts[transport.rank().position()] =
        to_plan_file(plan_measured(model, two_ranks(), options).saved);
    PlanProblem problem = two_ranks();
    for (PlanRank& rank : problem.ranks) rank.memory = 1000;
    try {
      plan_measured(model, problem, options);
    } catch (const DoesNotFit& error) {
      failures[transport.rank().position()] = error.what();
    }
  });
  EXPECT_EQ(texts[0], texts[1]);
  EXPECT_NE(failures[0], "");
  EXPECT_EQ(failures[0], failures[1]);
}

}  // namespace
}  // namespace stagecraft
