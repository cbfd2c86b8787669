#include "stagecraft/runtime/pipeline.h"

#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>
#include <pthread.h>

#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/keep_forwards.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage_context.h"
#include "stagecraft/transport/local/local_world.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using Function = std::function<at::Tensor(const at::Tensor&)>;

std::vector<Stage> make_stages(const std::vector<Function>& functions) {
  std::vector<Stage> stages;
  const auto n = static_cast<int32_t>(functions.size());
  for (int32_t s = 0; s < n; ++s) {
    stages.emplace_back(StageId(s), n,
                        stage_body([f = functions[static_cast<std::size_t>(s)]](
                                       const at::Tensor& x) { return f(x); }));
  }
  return stages;
}

const Function kIdentity = [](const at::Tensor& x) { return x; };
const Function kTanh = [](const at::Tensor& x) { return at::tanh(x); };
at::Tensor mean_square(const at::Tensor& y) {
  return y.square().mean();
}

TEST(Pipeline, RefusesWhatDoesNotFit) {
  EXPECT_ERROR(Pipeline(make_stages({kTanh, kTanh, kTanh}), {.ranks = 2}), ArgumentError,
               "3 stages cannot be placed evenly on 2 ranks");
  EXPECT_ERROR(Pipeline(make_stages({kTanh, kTanh}), {.ranks = 2, .ports = Ports(3)}),
               ArgumentError, "the ports are for 3 stages, but the model has 2");
  EXPECT_ERROR(Pipeline(make_stages({kTanh}), {.schedule = "2F2B"}), ArgumentError, "2F2B");
  EXPECT_THROW(Pipeline({}, {}), ArgumentError);
  auto twice = make_stages({kTanh, kTanh});
  twice[1] = Stage(StageId(0), 2, stage_body([](const at::Tensor& x) { return x; }));
  EXPECT_ERROR(Pipeline(std::move(twice), {.ranks = 2}), ArgumentError,
               "expected stage 1 of 2, got stage 0 of 2");
}

TEST(Pipeline, RefusesOptionsThatContradictEachOtherOrMakeNoSense) {
  const auto source = ScheduleSource::named("1F1B", 2);
  EXPECT_ERROR(Pipeline(make_stages({kTanh, kTanh}), {.ranks = 7, .source = source}), ArgumentError,
               "the schedule is for 2 ranks, but PipelineOptions::ranks is 7");
  EXPECT_ERROR(Pipeline(make_stages({kTanh}), {.timeout = std::chrono::seconds(-1)}), ArgumentError,
               "expected a timeout above 0, got -1000000000 ns");
  EXPECT_ERROR(Pipeline(make_stages({kTanh}), {.replicas = 2}), ArgumentError,
               "a Pipeline has one replica, got PipelineOptions::replicas = 2");
  EXPECT_ERROR(Pipeline(make_stages({kTanh}), {.threads_per_rank = 0}), ArgumentError,
               "at least one thread for each rank, got 0");
  Pipeline pipeline(make_stages({kTanh}), {.loss = mean_square});
  EXPECT_ERROR(pipeline.step({at::ones({2, 2})}, {}, {}, {.weights = {std::nan("")}}),
               ArgumentError, "expected finite weights, got nan");
  StageBody body{.forward = [](const Args& args, const Kwargs&) { return args[0]; },
                 .parameters = {{"w", at::ones({1})}, {"w", at::ones({2})}}};
  EXPECT_ERROR(Stage(StageId(0), 1, body), ArgumentError, "two of its parameters are called \"w\"");
}

TEST(ScheduleSource, TakesAsManyStagesARankAsTheScheduleHas) {
  EXPECT_EQ(ScheduleSource::named("1F1B", 2).placement().num_stages(), 2);
  EXPECT_EQ(ScheduleSource::named("ZBVZeroBubble", 2).placement().num_stages(), 4);
  EXPECT_EQ(ScheduleSource::named("Interleaved1F1B", 2, 3).placement().num_stages(), 6);
}

// What `lower` makes of the schedule, for a step and for an eval, by name and from a file.
TEST(ScheduleSource, LowersAsItIsTold) {
  const ScheduleShape shape{.ranks = 3, .microbatches = 6, .stages_per_rank = 4};
  const Schedule compute = build_schedule("Interleaved1F1B", shape);
  const StageGraph skip =
      StageGraph::chain(12).with_edges(std::vector<StageEdge>{{StageId(0), StageId(4)}});
  const std::vector<LowerOptions> all = {
      {.max_active_stages = 1},
      {.unshard_lookahead = Lookahead::kAuto},
      {.unshard_lookahead = std::vector<int32_t>{1, 2, 1}},
      {.reduction_wait = ReductionWait::kDeferred},
      {.max_sends = 1},
      {.target = LowerTarget::kTorch215, .max_sends = 2},
      {.prefetch = 0},
  };
  for (std::size_t i = 0; i < all.size(); ++i) {
    SCOPED_TRACE(i);
    const LowerOptions& options = all[i];
    const ScheduleSource named = ScheduleSource::named("Interleaved1F1B", 3, 4, options);
    const ScheduleSource fixed = ScheduleSource::fixed(compute, options);
    const ScheduleSource made =
        ScheduleSource::made_by([&](int32_t) { return compute; }, compute.placement(), options);
    for (const ScheduleSource& source : {named, fixed, made}) {
      for (const StageGraph& graph : {StageGraph::chain(12), skip}) {
        const Schedule expected = lower(compute, graph, options);
        EXPECT_EQ(to_csv(*source.training(6, graph)), to_csv(expected));
        EXPECT_NE(to_csv(expected), to_csv(lower(compute, graph)));
        EXPECT_EQ(to_csv(*source.forward_only(6, graph)),
                  to_csv(lower(keep_forwards(compute), graph, options)));
      }
    }
  }
  // A mode is that of training.
  const auto partial = ScheduleSource::fixed(compute, LowerOptions{.mode = VerifyMode::kTraining});
  EXPECT_EQ(partial.forward_only(6, skip)->num_microbatches(), 6);
}

TEST(ScheduleSource, RefusesOptionsThatDoNotFit) {
  EXPECT_ERROR(ScheduleSource::named("1F1B", 2, 1, LowerOptions{.max_active_stages = 0}),
               ArgumentError, "shard_stages: at least 1 active stage, got 0");
  EXPECT_ERROR(ScheduleSource::named("1F1B", 2, 1,
                                     LowerOptions{.unshard_lookahead = std::vector<int32_t>{1}}),
               ArgumentError, "the lookahead has 1 numbers, expected one for each of 2 ranks");
  const Schedule compute = build_schedule("GPipe", {.ranks = 2, .microbatches = 2});
  EXPECT_ERROR(ScheduleSource::fixed(compute, LowerOptions{.max_sends = 0}), ArgumentError,
               "limit_sends: at least 1 send, got 0");
  EXPECT_ERROR(ScheduleSource::fixed(lower(compute), LowerOptions{.max_sends = 1}), ArgumentError,
               "the schedule is lowered already, so it cannot be lowered with LowerOptions");
  const auto made = ScheduleSource::made_by([&](int32_t) { return lower(compute); },
                                            compute.placement(), LowerOptions{.max_sends = 1});
  EXPECT_ERROR(made.training(2, StageGraph::chain(2)), ArgumentError, "is lowered already");
}

TEST(Pipeline, DoesNotTrainWithForwardsAlone) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.schedule = "ForwardOnly", .loss = mean_square});
  EXPECT_ERROR(pipeline.step({at::ones({2, 2})}), ArgumentError,
               "the schedule has only forwards, which train nothing; call eval instead");
  EXPECT_TRUE(pipeline.eval({at::ones({2, 2})}).output.isTensor());
}

TEST(MemoryEstimate, NeedsAnEntryForEachStage) {
  const Schedule schedule = build_schedule("1F1B", {.ranks = 2, .microbatches = 2});
  EXPECT_ERROR(estimate_memory(schedule, std::vector<StageMemory>(1)), ArgumentError,
               "the schedule has 2 stages, got the memory of 1");
}

TEST(Pipeline, WaitsAsLongAsThereIsTime) {
  Pipeline pipeline(make_stages({kTanh, kTanh}),
                    {.ranks = 2, .loss = mean_square, .timeout = std::chrono::nanoseconds::max()});
  EXPECT_TRUE(pipeline.step({at::ones({2, 2})}).loss().defined());
}

TEST(Pipeline, AStepWithoutALossIsNoTraining) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2});
  const at::Tensor x = at::ones({2, 2}).set_requires_grad(true);
  EXPECT_ERROR(pipeline.step({x}), ArgumentError, "there is no loss, so nothing was trained");
  EXPECT_TRUE(pipeline.eval({x}).output.isTensor());
}

TEST(Pipeline, TakesStagesPortsAndTiesFromAPipe) {
  const at::Tensor weight = at::randn({3, 3}).set_requires_grad(true);
  const StageBody model{.forward = [weight](const Args& args, const Kwargs&) -> c10::IValue {
                          const at::Tensor x = args[0].toTensor();
                          return at::tanh(at::tanh(x.matmul(weight)).matmul(weight)) + x;
                        },
                        .parameters = {{"weight", weight}}};
  const Pipe pipe = stagecraft::pipeline(model, {{at::randn({2, 3})}, {}},
                                         {.points = {}, .policy = equal_operators(2)});
  ASSERT_EQ(pipe.ties().size(), 1U);
  Pipeline pipeline(pipe, {.loss = mean_square});
  EXPECT_EQ(pipeline.num_ranks(), 2);
  ASSERT_EQ(pipeline.parameters().size(), 2U);
  const at::Tensor x = at::randn({4, 3});
  pipeline.step({x}, {}, {}, {.microbatches = 2});
  EXPECT_TRUE(at::equal(pipeline.parameters()[0].grad(), pipeline.parameters()[1].grad()));
  const at::Tensor grad = weight.grad().clone();
  weight.mutable_grad().reset();
  mean_square(model.forward({x}, {}).toTensor()).backward();
  EXPECT_TRUE(at::allclose(grad, weight.grad(), 1e-5, 1e-6));
}

TEST(Pipeline, GoesOnWithTheRandomNumbersOfAnother) {
  const Function noisy = [](const at::Tensor& x) { return x + at::randn(x.sizes()); };
  const at::Tensor x = at::ones({2, 2}).set_requires_grad(true);
  Pipeline first(make_stages({noisy}), {.loss = mean_square, .seed = 1});
  first.step({x});
  const double second_loss = first.step({x}).loss().item<double>();
  EXPECT_EQ(first.completed_steps(), 2U);
  Pipeline later(make_stages({noisy}), {.loss = mean_square, .seed = 1});
  later.set_completed_steps(1);
  EXPECT_EQ(later.step({x}).loss().item<double>(), second_loss);
}

TEST(Pipeline, RefusesBatchesThatCannotBeCut) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2, .loss = mean_square});
  EXPECT_ERROR(pipeline.step({at::randn({2, 3})}, {}, {}, {.microbatches = 4}), ArgumentError,
               "rows for only 2 microbatches, expected 4");
  EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 0}), ArgumentError,
               "at least one microbatch, got 0");
  EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2, .weights = {1}}),
               ArgumentError, "a weight for each of 2 microbatches, got 1");
  EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, at::randn({1}), {.microbatches = 2}),
               ArgumentError, "the target has rows for only 1 microbatches");
  {
    const c10::AutoGradMode off(false);
    EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}), ArgumentError,
                 "gradients are disabled");
  }
  EXPECT_NO_THROW(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}));
}

TEST(Pipeline, AFixedScheduleIsForItsNumberOfMicrobatches) {
  Pipeline pipeline(
      make_stages({kTanh, kTanh}),
      {.source = ScheduleSource::fixed(parse_csv("0F0,0F1,0B0,0B1\n1F0,1F1,1B0,1B1\n")),
       .loss = mean_square});
  EXPECT_NO_THROW(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}));
  EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 3}), ArgumentError,
               "the schedule is for 2 microbatches, got 3");
}

// REDUCE_GRAD alone does not make a schedule lowered.
TEST(Pipeline, RunsWhatPyTorchPrintsForGPipe) {
  const Schedule printed =
      parse_csv("0F0,0F1,,0B0,0B1,0REDUCE_GRAD\n,1F0,1F1,1B0,1B1,1REDUCE_GRAD\n");
  Pipeline pipeline(make_stages({kTanh, kTanh}),
                    {.source = ScheduleSource::fixed(printed), .loss = mean_square});
  EXPECT_EQ(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}).losses.size(), 2U);
}

TEST(Pipeline, LossesAreWeightedAsAsked) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  const Function scale = [w](const at::Tensor& x) { return x * w; };
  Pipeline pipeline(make_stages({scale, kIdentity}),
                    {.ranks = 2, .loss = [](const at::Tensor& y) { return y.mean(); }});
  const at::Tensor x = at::randn({8, 3});
  auto grad = [&](const StepOptions& options) {
    w.mutable_grad().reset();
    pipeline.step({x}, {}, {}, options);
    return w.grad().clone();
  };
  const at::Tensor whole = x.mean(0) / 3;
  EXPECT_TRUE(at::allclose(grad({.microbatches = 3}), whole, 1e-5, 1e-6));  // 3, 3 and 2 rows
  const auto parts = x.tensor_split(3);
  EXPECT_TRUE(at::allclose(grad({.microbatches = 3, .scale = LossScale::kSum}),
                           (parts[0].mean(0) + parts[1].mean(0) + parts[2].mean(0)) / 3, 1e-5,
                           1e-6));
  EXPECT_TRUE(at::allclose(grad({.microbatches = 3, .weights = {0, 2, 0}}),
                           parts[1].mean(0) * 2 / 3, 1e-5, 1e-6));
}

TEST(Pipeline, TheMeanFollowsTheDimensionThatIsCut) {
  const at::Tensor w = at::ones({4}).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 1,
                      stage_body([w](const at::Tensor& x) { return x * w.narrow(0, 0, 1); }));
  Pipeline pipeline(std::move(stages), {.loss = [](const at::Tensor& y) { return y.mean(); }});
  const StepResult result = pipeline.step(
      {at::randn({4, 8})}, {}, {},
      {.microbatches = 3, .args_spec = ChunkSpec::tuple({1}), .output_spec = ChunkSpec(1)});
  EXPECT_EQ(result.weights, (std::vector<double>{3.0 / 8, 3.0 / 8, 2.0 / 8}));
}

TEST(Pipeline, AModelInputWithAHistoryIsDifferentiatedIntoIt) {
  const at::Tensor table = at::randn({6, 3}).requires_grad_();
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2, .loss = mean_square});
  pipeline.step({table * table}, {}, {}, {.microbatches = 3});
  const at::Tensor reference = table.detach().requires_grad_();
  mean_square(at::tanh(at::tanh(reference * reference))).backward();
  EXPECT_TRUE(at::allclose(table.grad(), reference.grad(), 1e-5, 1e-7));
}

TEST(Pipeline, AStepWhoseOutputsCannotBeMergedLeavesNoGradients) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 1,
                      stage_body([w](const at::Tensor& x) { return (x * w).sum(); }, {{"w", w}}));
  Pipeline pipeline(std::move(stages), {.loss = [](const at::Tensor& y) { return y * 1; }});
  EXPECT_THROW(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}), MetadataError);
  EXPECT_FALSE(w.grad().defined());
  pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2, .outputs = OutputMode::kEach});
  EXPECT_TRUE(w.grad().defined());
}

TEST(Pipeline, GivesOutputsAsAsked) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2, .loss = mean_square});
  const at::Tensor x = at::randn({5, 3});
  const at::Tensor expected = at::tanh(at::tanh(x));
  const StepResult merged = pipeline.step({x}, {}, {}, {.microbatches = 2});
  EXPECT_TRUE(at::equal(merged.output.toTensor(), expected));
  EXPECT_FALSE(merged.output.toTensor().requires_grad());
  const StepResult each =
      pipeline.step({x}, {}, {}, {.microbatches = 2, .outputs = OutputMode::kEach});
  ASSERT_EQ(each.outputs.size(), 2u);
  EXPECT_EQ(each.outputs[0].toTensor().size(0), 3);
  EXPECT_TRUE(each.output.isNone());
  const StepResult none =
      pipeline.step({x}, {}, {}, {.microbatches = 2, .outputs = OutputMode::kNone});
  EXPECT_TRUE(none.output.isNone() && none.outputs.empty());
  EXPECT_EQ(none.losses.size(), 2u);
}

TEST(Pipeline, TakesMicrobatchesThatAreCutAlready) {
  Pipeline pipeline(make_stages({kTanh, kTanh}),
                    {.ranks = 2, .loss = [](const at::Tensor& y, const at::Tensor& t) {
                       return at::mse_loss(y, t);
                     }});
  Microbatches batch;
  for (const int64_t rows : {4, 1, 7}) {
    batch.inputs.push_back({{at::randn({rows, 3})}, {}});
    batch.targets.emplace_back(at::randn({rows, 3}));
  }
  const StepResult result = pipeline.step(batch);
  EXPECT_EQ(result.weights, (std::vector<double>{4.0 / 12, 1.0 / 12, 7.0 / 12}));
  batch.targets.pop_back();
  EXPECT_ERROR(pipeline.step(batch), ArgumentError, "a target for each of 3 microbatches, got 2");
}

TEST(Pipeline, AModelInputThatRequiresGradGetsOne) {
  for (const char* schedule : {"1F1B", "InterleavedZeroBubble"}) {
    const bool is_split = std::string(schedule) != "1F1B";
    const at::Tensor x = at::randn({6, 3}).requires_grad_();
    Pipeline pipeline(make_stages(std::vector<Function>(is_split ? 4 : 2, kTanh)),
                      {.schedule = schedule, .ranks = 2, .loss = mean_square});
    pipeline.step({x}, {}, {}, {.microbatches = 3});
    const at::Tensor y = x.detach().requires_grad_();
    at::Tensor h = y;
    for (int i = 0; i < (is_split ? 4 : 2); ++i) h = at::tanh(h);
    mean_square(h).backward();
    EXPECT_TRUE(at::allclose(x.grad(), y.grad(), 1e-5, 1e-7)) << schedule;
  }
}

TEST(Pipeline, LossArgumentsAndTargetsAreTrees) {
  Pipeline pipeline(
      make_stages({kTanh, kTanh}),
      {.ranks = 2,
       .loss = Loss([](const c10::IValue& y, const c10::IValue& target, const Kwargs& arguments) {
         const auto dict = target.toGenericDict();
         return c10::IValue(at::mse_loss(y.toTensor(), dict.at("goal").toTensor()) *
                            arguments.get("factor").toDouble() * dict.at("scale").toDouble());
       })});
  const at::Tensor x = at::randn({4, 3});
  const auto target = tree::dict({{"goal", at::randn({4, 3})}, {"scale", 2.0}});
  const double half =
      pipeline.step({x}, {}, target, {.microbatches = 2, .loss_arguments = {{"factor", 0.5}}})
          .loss()
          .item()
          .toDouble();
  const double one =
      pipeline.step({x}, {}, target, {.microbatches = 2, .loss_arguments = {{"factor", 1.0}}})
          .loss()
          .item()
          .toDouble();
  EXPECT_NEAR(one, 2 * half, 1e-6);
}

TEST(Pipeline, AddedLossesAreDifferentiatedInEverySchedule) {
  for (const char* schedule : {"GPipe", "1F1B", "InterleavedZeroBubble", "DualPipeV"}) {
    const int32_t n =
        std::string(schedule).find("1F1B") == 0 || std::string(schedule) == "GPipe" ? 2 : 4;
    const at::Tensor w = at::ones({3}).requires_grad_();
    std::vector<Function> functions(static_cast<std::size_t>(n), kIdentity);
    functions[0] = [w](const at::Tensor& x) {
      add_loss((w * 3).sum());
      return x * w;
    };
    Pipeline pipeline(make_stages(functions),
                      {.schedule = schedule, .ranks = 2, .loss = [](const at::Tensor& y) {
                         return y.mean() * 0;
                       }});
    const StepResult result = pipeline.step({at::randn({8, 3})}, {}, {}, {.microbatches = 4});
    EXPECT_TRUE(at::equal(w.grad(), at::ones({3}) * 3)) << schedule;
    EXPECT_EQ(result.added_losses[2].item().toDouble(), 9) << schedule;
  }
}

TEST(Pipeline, AnOutputOfSeveralReadersMayNotBeChangedInPlace) {
  const at::Tensor w = at::ones({3}).requires_grad_();
  std::vector<Stage> stages;
  stages.emplace_back(StageId(0), 3, stage_body([w](const at::Tensor& x) { return x * w; }));
  stages.emplace_back(StageId(1), 3, stage_body([](at::Tensor x) { return x.mul_(2); }));
  stages.emplace_back(StageId(2), 3, stage_body([](const at::Tensor& x, const at::Tensor& skip) {
                        return x + skip;
                      }));
  Ports ports(3);
  ports.connect({StageId(0), 0}, {StageId(1), 0}).connect({StageId(0), 0}, {StageId(2), 1});
  Pipeline pipeline(std::move(stages),
                    {.schedule = "GPipe", .ranks = 3, .loss = mean_square, .ports = ports});
  EXPECT_ERROR(pipeline.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}), StageError,
               "an output of stage 0 that several stages read was changed in place");
}

TEST(Pipeline, AutocastOfTheCallerHoldsOnTheRanks) {
  const at::Tensor w = at::randn({4, 4}).requires_grad_();
  std::atomic<int> halves = 0;
  const Function product = [&, w](const at::Tensor& x) {
    const at::Tensor y = x.mm(w);
    if (y.scalar_type() == c10::kBFloat16) ++halves;
    return y;
  };
  Pipeline pipeline(make_stages({product, product}), {.ranks = 2, .loss = [](const at::Tensor& y) {
                                                        return y.to(c10::kFloat).mean();
                                                      }});
  at::autocast::set_autocast_enabled(c10::kCPU, true);
  at::autocast::set_autocast_dtype(c10::kCPU, c10::kBFloat16);
  pipeline.step({at::randn({4, 4})}, {}, {}, {.microbatches = 2});
  at::autocast::set_autocast_enabled(c10::kCPU, false);
  EXPECT_EQ(halves.load(), 4);
  pipeline.step({at::randn({4, 4})}, {}, {}, {.microbatches = 2});
  EXPECT_EQ(halves.load(), 4);
}

TEST(Pipeline, ConnectionsThatNothingFillsAreNamed) {
  std::vector<Stage> stages = make_stages({kTanh, kTanh});
  Ports ports(2);
  ports.connect({StageId(0), 1}, {StageId(1), 1});
  Pipeline missing(std::move(stages), {.ranks = 2, .loss = mean_square, .ports = ports});
  EXPECT_ERROR(missing.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}), StageError,
               "output 1 of stage 0 is connected to stage 1, but the stage returned 1 outputs");
  Ports fed(2);
  fed.feed("mask", {StageId(1), 0, "mask"});
  Pipeline hungry(make_stages({kTanh, kTanh}), {.ranks = 2, .loss = mean_square, .ports = fed});
  EXPECT_ERROR(hungry.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}), StageError,
               "stage 1 takes the model's \"mask\", which was not given to rank 1");
}

TEST(Runner, ResultsAreOnEveryRankThatAsks) {
  LocalWorld world(3);
  std::array<StepResult, 3> results;
  world.run([&](Transport& transport) {
    const int32_t rank = transport.rank().value();
    std::vector<Stage> own;
    own.emplace_back(StageId(rank), 3, stage_body([](const at::Tensor& x) { return at::tanh(x); }));
    Runner runner(transport, std::move(own), {.schedule = "1F1B", .loss = mean_square});
    const StepOptions options{.microbatches = 2, .everywhere = rank == 0};
    results[static_cast<std::size_t>(rank)] = rank == 0
                                                  ? runner.step({at::ones({4, 2})}, {}, {}, options)
                                                  : runner.step(Args{}, {}, {}, options);
    const Recording recording = runner.recorded_run().recording;
    EXPECT_EQ(recording.ranks.size(), 3u);
    EXPECT_EQ(make_report(recording).not_run, 0);
  });
  EXPECT_EQ(results[2].losses.size(), 2u);
  EXPECT_TRUE(results[1].losses.empty());
  ASSERT_EQ(results[0].losses.size(), 2u);
  EXPECT_TRUE(at::equal(results[0].output.toTensor(), results[2].output.toTensor()));
  EXPECT_EQ(results[0].weights, results[2].weights);
}

TEST(Runner, RanksThatCountOtherMicrobatchesSayWhy) {
  LocalWorld world(2);
  auto train = [](Transport& transport) {
    const int32_t rank = transport.rank().value();
    std::vector<Stage> own;
    own.emplace_back(StageId(rank), 2, stage_body([](const at::Tensor& x) { return at::tanh(x); }));
    Runner runner(transport, std::move(own), {.schedule = "GPipe", .loss = mean_square});
    rank == 0 ? runner.step({at::ones({4, 2})}, {}, {}, {.microbatches = 4}) : runner.step(Args{});
  };
  EXPECT_ERROR(world.run(train), Error, "the number of microbatches is 4 on rank 0, 1 on rank 1");
}

TEST(Runner, ABatchThatIsRefusedLeavesTheGradientsOfTheStepBefore) {
  LocalWorld world(1);
  const at::Tensor w = at::ones({3}).requires_grad_();
  std::vector<Stage> own;
  own.emplace_back(StageId(0), 1,
                   stage_body([w](const at::Tensor& x) { return x * w; }, {{"w", w}}));
  Runner runner(world.transport(Rank(0)), std::move(own),
                {.schedule = "GPipe", .loss = mean_square});
  runner.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2});
  const at::Tensor before = w.grad().clone();
  EXPECT_THROW(runner.eval({at::randn({2, 3})}, {}, {}, {.microbatches = 5}), ArgumentError);
  ASSERT_TRUE(w.grad().defined());
  EXPECT_TRUE(at::equal(w.grad(), before));
  EXPECT_NO_THROW(runner.step({at::randn({4, 3})}, {}, {}, {.microbatches = 2}));
}

TEST(Runner, RefusesStagesThatAreNotItsOwn) {
  LocalWorld world(1);
  LocalWorld two(2);
  EXPECT_ERROR(Runner(two.transport(Rank(0)), make_stages({kTanh}),
                      {.source = ScheduleSource::named("1F1B", 2)}),
               ArgumentError, "stage 0 is one of 1, but the schedule has 2 stages");
  EXPECT_ERROR(Runner(world.transport(Rank(0)), {}, {.source = ScheduleSource::named("1F1B", 1)}),
               ArgumentError, "the schedule places stages [0] here, got []");
  EXPECT_ERROR(Runner(world.transport(Rank(0)), {}), ArgumentError,
               "a Runner has at least one stage, got none");
}

TEST(Runner, RefusesOptionsThatContradictItsSchedule) {
  LocalWorld world(1);
  const ScheduleSource source = ScheduleSource::named("1F1B", 1);
  EXPECT_ERROR(
      Runner(world.transport(Rank(0)), make_stages({kTanh}), {.ranks = 3, .source = source}),
      ArgumentError, "the schedule is for 1 ranks, but PipelineOptions::ranks is 3");
}

// Code that takes a PipelineBase can make the calls of a world for threads, too.
TEST(Pipeline, HasNothingToDoInCallsOfAWorld) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2, .loss = mean_square});
  PipelineBase& base = pipeline;
  EXPECT_EQ(base.shards(), nullptr);
  EXPECT_EQ(base.replica(), 0);
  EXPECT_NO_THROW(base.recover());
  EXPECT_NO_THROW(base.gather_weights());
  bool is_called = false;
  base.with_whole_parameters([&] { is_called = true; });
  EXPECT_TRUE(is_called);
  EXPECT_ERROR(base.fit_unshard_lookahead(), ArgumentError,
               "weights that are not sharded are not gathered");
  EXPECT_ERROR(base.set_unshard_lookahead({1, 1}), ArgumentError,
               "weights that are not sharded are not gathered");
}

// The recording of a rank is its own; that of the pipeline has all ranks, and every rank gets it.
TEST(Runner, ReportsAllRanksAndItsOwn) {
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const int32_t rank = transport.rank().value();
    std::vector<Stage> own;
    own.emplace_back(StageId(rank), 2, stage_body([](const at::Tensor& x) { return at::tanh(x); }));
    Runner runner(transport, std::move(own), {.schedule = "GPipe"});
    runner.eval(rank == 0 ? Args{at::randn({4, 3})} : Args{}, {}, {}, {.microbatches = 2});
    const Recording all = runner.recording();
    ASSERT_EQ(all.ranks.size(), 2U);
    EXPECT_EQ(all.ranks[transport.rank().position()].actions.size(),
              runner.rank_recording().actions.size());
    EXPECT_EQ(runner.report().ranks.size(), 2U);
  });
}

TEST(Pipeline, SetsTheThreadsOfItsOnlyRank) {
  const int32_t before = at::get_num_threads();
  const Pipeline pipeline(make_stages({kTanh}), {.threads_per_rank = before + 1});
  EXPECT_EQ(at::get_num_threads(), before + 1);
  at::set_num_threads(before);
}

TEST(Pipeline, NamesAStageThatDoesNotExist) {
  Pipeline pipeline(make_stages({kTanh, kTanh}), {.ranks = 2});
  EXPECT_ERROR(pipeline.stage(StageId(7)), ArgumentError,
               "there is no stage 7; there are 2 stages");
}

TEST(Runner, SetsTheThreadsOfItsRank) {
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    std::vector<Stage> own;
    own.emplace_back(StageId(transport.rank().value()), 2,
                     stage_body([](const at::Tensor& x) { return at::tanh(x); }));
    const int32_t threads = 2 + transport.rank().value();
    const Runner runner(transport, std::move(own),
                        {.schedule = "1F1B", .threads_per_rank = threads});
    EXPECT_EQ(at::get_num_threads(), threads);
  });
}

// The guard `fits` is on an input of stage 0 and an input of stage 1, so no stage can check it.
Pipe guarded_pipe() {
  const Graph graph = parse_graph(R"--(graph exported
size B = 4, at least 1
size S = 8, at least 1
size fits = 1, as less(B, S)
require fits: "args[0].size(0) < args[1].size(0)"
args (%x: float32[B], %y: float32[S])
kwargs {}
%exp = aten::exp(self=%x): float32[B]
%sum = aten::sum(self=%exp, dtype=None): float32[]
%out = aten::mul.Tensor(self=%y, other=%sum): float32[S]
return %out
)--",
                                  [](const std::string&) { return at::Tensor(); });
  return Pipe(graph, {.policy = [](const Graph&) { return SplitPositions{2}; }});
}

TEST(Runner, RefusesInputsThatBreakAGuardOnAllRanks) {
  const Pipe pipe = guarded_pipe();
  const at::Tensor x = at::ones({4});
  const at::Tensor y = at::ones({5});
  for (const bool has_all_inputs : {false, true}) {
    SCOPED_TRACE(has_all_inputs);
    LocalWorld world(2);
    std::array<std::string, 2> errors;
    at::Tensor output;
    world.run([&](Transport& transport) {
      const auto rank = static_cast<std::size_t>(transport.rank().value());
      Runner runner(transport, pipe, {.timeout = std::chrono::seconds(20), .seed = 7});
      // Stage 1 takes y. Without x, rank 1 cannot check the guard.
      const auto batch_of = [&](const at::Tensor& first) {
        return Microbatches{
            .inputs = {
                {{rank == 0 || has_all_inputs ? c10::IValue(first) : c10::IValue(), y}, {}}}};
      };
      try {
        runner.eval(batch_of(at::ones({6})));
      } catch (const Error& error) {
        errors[rank] = error.what();
        const bool is_first = dynamic_cast<const MetadataError*>(&error) != nullptr;
        EXPECT_TRUE(is_first || dynamic_cast<const PeerError*>(&error) != nullptr);
        EXPECT_TRUE(has_all_inputs || is_first == (rank == 0));
      }
      const StepResult result = runner.eval(batch_of(x));
      if (rank == 1) output = result.output.toTensor();
    });
    for (const std::string& error : errors) {
      EXPECT_NE(error.find("the model was exported for inputs with args[0].size(0) < "
                           "args[1].size(0), got B = 6, S = 5"),
                std::string::npos)
          << error;
    }
    EXPECT_TRUE(at::equal(output, pipe.run({x, y}).toTensor()));
  }
}

TEST(Pipeline, RefusesInputsThatBreakAGuard) {
  const Pipe pipe = guarded_pipe();
  Pipeline pipeline(pipe, {.ranks = 2});
  EXPECT_ERROR(pipeline.eval({at::ones({6}), at::ones({5})}), MetadataError,
               "for inputs with args[0].size(0) < args[1].size(0), got B = 6, S = 5");
  EXPECT_TRUE(pipeline.eval({at::ones({4}), at::ones({5})}).output.isTensor());
}

#ifdef __linux__
TEST(Pipeline, NamesItsThreadsByRank) {
  std::array<std::string, 2> names;
  const auto read_name = [&names](std::size_t stage) {
    return [&names, stage](const at::Tensor& x) {
      std::array<char, 16> name{};
      pthread_getname_np(pthread_self(), name.data(), name.size());
      names[stage] = name.data();
      return x;
    };
  };
  Pipeline pipeline(make_stages({read_name(0), read_name(1)}), {.ranks = 2});
  pipeline.eval({at::ones({2, 2})});
  EXPECT_EQ(names, (std::array<std::string, 2>{"rank 0", "rank 1"}));
}
#endif

}  // namespace
}  // namespace stagecraft
