// Replicas that divide gradients and weights among themselves, on threads.

#include <atomic>
#include <chrono>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/tanh.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/shard/storage_memory.h"
#include "tests/runtime/shard_cases.h"
#include "tests/support/expect_error.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

std::function<TestModel()> chain(int32_t stages) {
  return [stages] { return chain_model(stages, 20); };
}

void check_on_threads(const ShardCase& c) {
  LocalWorld world(c.replicas * c.schedule.ranks);
  world.run([&](Transport& transport) { check_kinds(transport, c); });
}

// Plain autograd with one weight for both stages: that weight and the two biases.
std::vector<at::Tensor> train_with_one_weight(const ShardCase& c) {
  const auto parameters = parameters_of(c.make_model().bodies);
  std::vector<at::Tensor> own = {parameters[0].tensor, parameters[1].tensor, parameters[3].tensor};
  for (int32_t update = 0; update < kShardUpdates; ++update) {
    for (int32_t part = 0; part < c.accumulate; ++part) {
      for (int32_t replica = 0; replica < c.replicas; ++replica) {
        const Microbatches batch = shard_batch(c, update, part, replica);
        const auto count = static_cast<double>(batch.inputs.size()) * c.replicas;
        for (std::size_t m = 0; m < batch.inputs.size(); ++m) {
          const at::Tensor x = batch.inputs[m].args[0].toTensor();
          const at::Tensor hidden = at::tanh(at::linear(x, own[0], own[1]));
          const at::Tensor y = at::tanh(at::linear(hidden, own[0], own[2]));
          at::mse_loss(y, batch.targets[m].toTensor()).div(count).backward();
        }
      }
    }
    const at::NoGradGuard no_grad;
    for (at::Tensor& parameter : own) {
      parameter.sub_(parameter.grad(), kShardRate);
      parameter.mutable_grad().reset();
    }
  }
  return own;
}

TEST(Sharding, HasTheBitsOfWholeReplicas) {
  for (const ScheduleCase& schedule : training_cases(2)) {
    check_on_threads({.schedule = schedule, .make_model = chain(schedule.stages())});
  }
}

TEST(Sharding, AnyNumberOfReplicasAndRows) {
  check_on_threads({.schedule = {"Interleaved1F1B", 1, 3, 2},
                    .replicas = 3,
                    .rows = {3, 1, 4},
                    .make_model = chain(3),
                    .accumulate = 2});
  check_on_threads(
      {.schedule = {"1F1B", 1, 1, 2}, .replicas = 4, .rows = {2, 2, 2, 2}, .make_model = chain(1)});
}

TEST(Sharding, KeepsTiedWeightsTied) {
  const auto make = [] {
    TestModel model = chain_model(4, 20);
    model.ties = {{{StageId(0), "weight"}, {StageId(3), "weight"}}};
    return model;
  };
  check_on_threads({.schedule = {"1F1B", 4, 1, 4}, .make_model = make});
  check_on_threads({.schedule = {"ZBVZeroBubble", 2, 2, 4}, .make_model = make, .accumulate = 2});
}

// A parameter that two stages of a rank hold is a unit of its own.
TEST(Sharding, AParameterOfTwoStages) {
  check_on_threads({.schedule = {"Interleaved1F1B", 1, 2, 2}, .width = 6, .make_model = [] {
                      return models::model_with_param_alias(6).stages;
                    }});
}

// Stage 0 is resharded before stage 1, which holds the same parameter, runs.
TEST(Sharding, AParameterIsReleasedWithTheLastOfItsStages) {
  const auto make = [] {
    TestModel model = models::model_with_param_alias(6).stages;
    model.bodies.push_back(chain_model(1, 6).bodies[0]);
    model.ports = Ports(3);
    return model;
  };
  check_on_threads({.schedule = {"LoopedBFS", 1, 3, 2, LowerOptions{.max_active_stages = 2}},
                    .width = 6,
                    .make_model = make});
}

TEST(Sharding, FrozenParametersStayWhole) {
  const auto make = [] {
    TestModel model = chain_model(2, 20);
    model.bodies[1].parameters[0].second.requires_grad_(false);
    return model;
  };
  const ShardCase c{.schedule = {"1F1B", 2, 1, 4}, .make_model = make};
  check_on_threads(c);
  LocalWorld world(4);
  world.run([&](Transport& transport) {
    const TestModel model = make();
    const ScheduleSource source = c.schedule.source();
    const Rank own(transport.rank().value() % 2);
    const Runner runner(
        transport, stages_on(model, source.placement(), own),
        runner_options(
            model, {.source = source, .seed = 7, .replicas = 2, .shard = ShardKind::kParameters}));
    std::size_t sharded = 0;
    for (const at::Tensor& parameter : runner.parameters()) {
      sharded += runner.shards()->find_unit(parameter) != nullptr ? 1 : 0;
    }
    EXPECT_EQ(sharded, own == Rank(0) ? 2U : 1U);
  });
}

// Loading weights: what is written in with_whole_parameters takes effect, as with whole replicas.
TEST(Sharding, HonoursWritesToWholeParameters) {
  check_on_threads({.schedule = {"1F1B", 2, 1, 4},
                    .make_model = chain(2),
                    .before_step = [](Runner& runner, Transport&, int32_t step) {
                      if (step != 1) return;
                      runner.with_whole_parameters([&] {
                        const at::NoGradGuard no_grad;
                        for (at::Tensor& parameter : runner.parameters()) parameter.mul_(0.5);
                      });
                    }});
}

TEST(Sharding, RefusesWritesToParametersInPieces) {
  const ScheduleCase schedule{"1F1B", 1, 1, 2};
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(1, 20);
    const ScheduleSource source = schedule.source();
    Runner runner(
        transport, stages_on(model, source.placement(), Rank(0)),
        runner_options(
            model, {.source = source, .seed = 7, .replicas = 2, .shard = ShardKind::kParameters}));
    const auto write = [&] {
      const at::NoGradGuard no_grad;
      runner.parameters().front().zero_();
    };
    if (is_access_refused()) {
      EXPECT_THAT(write, testing::Throws<std::exception>(testing::Property(
                             &std::exception::what,
                             testing::HasSubstr("stage 0: its parameters (weight, bias)"))));
    }
    at::Tensor weight = runner.parameters().front();
    weight.set_data(at::zeros(weight.sizes()));
    EXPECT_ERROR(runner.step(part_of(random_batch(2, 6, 20, 0), source.placement(), Rank(0)),
                             {.microbatches = 2}),
                 Error, "the data of parameter \"weight\" was replaced");
  });
}

// Steps whose gradients stay local add up in whole gradients, as with whole replicas.
TEST(Sharding, GradientsCanStayLocal) {
  check_on_threads({.schedule = {"Interleaved1F1B", 2, 2, 4},
                    .make_model = chain(4),
                    .accumulate = 3,
                    .reduces = {false, false, true}});
}

// Copies of a tied weight, whose gradients stay local for some steps, are one weight in plain
// autograd. (Sums have a different order, so bits may differ.)
TEST(Sharding, LocalGradientsOfATiedWeightAreThoseOfOneWeight) {
  const auto make = [] {
    TestModel model = chain_model(2, 20);
    model.ties = {{{StageId(0), "weight"}, {StageId(1), "weight"}}};
    const auto parameters = parameters_of(model.bodies);
    const at::NoGradGuard no_grad;
    parameters[2].tensor.copy_(parameters[0].tensor);
    return model;
  };
  ShardCase c{.schedule = {"1F1B", 2, 1, 4}, .make_model = make, .accumulate = 3};
  const std::vector<at::Tensor> expected = train_with_one_weight(c);
  for (const std::vector<bool>& reduces :
       std::vector<std::vector<bool>>{{false, false, true}, {true, false, true}}) {
    c.reduces = reduces;
    LocalWorld world(4);
    world.run([&](Transport& transport) {
      for (const ShardKind kind : {ShardKind::kNone, ShardKind::kOptimizer, ShardKind::kGradients,
                                   ShardKind::kParameters}) {
        const ShardOutcome got = train_sharded(transport, c, kind);
        const at::Tensor& bias = expected[transport.rank().value() % 2 == 0 ? 1 : 2];
        EXPECT_TRUE(at::allclose(got.parameters.at(0), expected[0], 1e-5, 1e-6)) << to_string(kind);
        EXPECT_TRUE(at::allclose(got.parameters.at(1), bias, 1e-5, 1e-6)) << to_string(kind);
      }
    });
  }
}

// Sums that were reduced before stay in the pieces. (Whole replicas have them in a different place,
// so the sum of both kinds is not bitwise equal to theirs.)
TEST(Sharding, LocalGradientsAreAddedToReducedOnes) {
  const ScheduleCase schedule{"1F1B", 1, 1, 2};
  const auto grads = [&](ShardKind kind) {
    at::Tensor result;
    LocalWorld world(2);
    world.run([&](Transport& transport) {
      const TestModel model = chain_model(1, 20);
      const ScheduleSource source = schedule.source();
      Runner runner(
          transport, stages_on(model, source.placement(), Rank(0)),
          runner_options(model, {.source = source, .seed = 7, .replicas = 2, .shard = kind}));
      for (const uint64_t step : {0, 1, 2, 3}) {
        const auto seed = 10 * step + static_cast<uint64_t>(transport.rank().value());
        runner.step(part_of(random_batch(2, 6, 20, seed), source.placement(), Rank(0)),
                    {.microbatches = 2, .reduce_grads = step % 2 == 0});
        const bool is_local = kind != ShardKind::kNone && step % 2 == 1;
        EXPECT_EQ(runner.parameters().front().grad().defined(),
                  is_local || kind == ShardKind::kNone);
      }
      runner.step(part_of(random_batch(2, 6, 20, 7), source.placement(), Rank(0)),
                  {.microbatches = 2});
      if (transport.rank() != Rank(0)) return;
      const at::Tensor weight = kind == ShardKind::kNone
                                    ? runner.parameters().front().grad().flatten()
                                    : runner.shards()->units().front()->grad(0);
      result = weight.narrow(0, 0, 200).clone();
    });
    return result;
  };
  EXPECT_TRUE(at::allclose(grads(ShardKind::kGradients), grads(ShardKind::kNone), 1e-5, 1e-7));
}

TEST(Sharding, TheLookaheadIsSetByAllRanksAlike) {
  const ScheduleCase schedule{"Interleaved1F1B", 1, 3, 2};
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(3, 20);
    const ScheduleSource source = schedule.source();
    Runner runner(transport, stages_on(model, source.placement(), Rank(0)),
                  runner_options(model, {.source = source,
                                         .timeout = std::chrono::seconds(20),
                                         .seed = 7,
                                         .replicas = 2,
                                         .shard = ShardKind::kParameters}));
    const Microbatches batch = part_of(random_batch(2, 6, 20, 1), source.placement(), Rank(0));
    const auto lists = [&](const UnshardLookahead& lookahead) {
      return *ScheduleSource::named("Interleaved1F1B", 1, 3,
                                    LowerOptions{.unshard_lookahead = lookahead})
                  .training(2, StageGraph::chain(3));
    };
    const auto step = [&] {
      runner.step(batch, {.microbatches = 2});
      return runner.recorded_run().recording.schedule;
    };
    EXPECT_EQ(step(), lists(Lookahead::kFull));
    runner.set_unshard_lookahead({1});
    EXPECT_EQ(step(), lists(std::vector<int32_t>{1}));
    EXPECT_NE(lists(std::vector<int32_t>{1}), lists(Lookahead::kFull));
    EXPECT_ERROR(runner.set_unshard_lookahead({4}), ArgumentError,
                 "a lookahead is a number from 1 to 3");
    EXPECT_ERROR(runner.set_unshard_lookahead({1, 1}), ArgumentError, "one for each of 1 ranks");
    runner.eval(batch, {.microbatches = 2});
    EXPECT_ERROR(runner.fit_unshard_lookahead(), ArgumentError, "which must have trained");
    runner.set_unshard_lookahead({1 + transport.rank().value()});
    EXPECT_ERROR(step(), MetadataError, "the ranks do not agree");
    runner.set_unshard_lookahead({2});
    EXPECT_EQ(step(), lists(std::vector<int32_t>{2}));
  });
}

TEST(Sharding, UnitsCanBeNamed) {
  for (const auto& units : std::vector<std::vector<std::string>>{{"bias"}, {"weight", "bias"}}) {
    check_on_threads(
        {.schedule = {"ZBVZeroBubble", 2, 2, 4}, .make_model = chain(4), .units = units});
  }
  const auto sizes = [](std::vector<std::string> units) {
    const std::vector<std::string> names = {"blocks.1.a", "blocks.10.a", "blocks.1.inner.b", "c"};
    NamedTensors tensors;
    for (const std::string& name : names) {
      tensors.emplace_back(name, at::ones({3}).requires_grad_());
    }
    std::vector<Stage> stages;
    stages.emplace_back(StageId(0), 1,
                        stage_body([](const at::Tensor& x) { return x; }, std::move(tensors)));
    const ParameterShards shards(
        ShardKind::kParameters, {.members = {Rank(0), Rank(1)}, .own = 0}, stages,
        [](StageId, const std::string&) { return false; }, std::move(units));
    std::vector<std::vector<std::string>> result;
    for (const auto& unit : shards.units()) {
      result.emplace_back();
      for (const auto& parameter : unit->parameters()) result.back().push_back(parameter.name);
    }
    return result;
  };
  using Names = std::vector<std::vector<std::string>>;
  EXPECT_EQ(sizes({}), (Names{{"blocks.1.a", "blocks.10.a", "blocks.1.inner.b", "c"}}));
  EXPECT_EQ(sizes({"blocks.1", "blocks.1.inner", "c"}),
            (Names{{"blocks.1.a"}, {"blocks.10.a"}, {"blocks.1.inner.b"}, {"c"}}));
}

TEST(Sharding, AUnitThatNoStageHasIsAnError) {
  const ScheduleCase schedule{"1F1B", 1, 1, 2};
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(1, 20);
    const ScheduleSource source = schedule.source();
    Runner runner(transport, stages_on(model, source.placement(), Rank(0)),
                  runner_options(model, {.source = source,
                                         .seed = 7,
                                         .replicas = 2,
                                         .shard = ShardKind::kGradients,
                                         .shard_units = {"weight", "wieght"}}));
    EXPECT_ERROR(runner.step(part_of(random_batch(2, 6, 20, 0), source.placement(), Rank(0)),
                             {.microbatches = 2}),
                 MetadataError, "no stage has parameters to shard in a module \"wieght\"");
  });
}

// Evals gather, too, and a step that failed leaves gradients and weights as they were.
TEST(Sharding, AFailedStepChangesNothing) {
  for (const ShardKind kind :
       {ShardKind::kOptimizer, ShardKind::kGradients, ShardKind::kParameters}) {
    SCOPED_TRACE(to_string(kind));
    std::atomic<bool> fails = false;
    std::atomic<int> calls = 0;
    const auto make = [&] {
      TestModel model = chain_model(2, 20);
      model.loss = [&](const at::Tensor& output, const at::Tensor& target) {
        // The third call comes after a backward of at least one of the two replicas.
        if (fails && ++calls > 2) throw ArgumentError("the loss fails");
        return at::mse_loss(output, target);
      };
      return model;
    };
    const ShardCase plain{.schedule = {"1F1B", 2, 1, 4},
                          .make_model = make,
                          .accumulate = 2,
                          .reduces = {kind != ShardKind::kParameters, true}};
    ShardCase failing = plain;
    std::vector<ShardOutcome> expected(4);
    LocalWorld world(4);
    world.run([&](Transport& transport) {
      expected[transport.rank().position()] = train_sharded(transport, plain, kind);
    });
    // After a step whose gradients are in pieces, or local.
    failing.before_step = [&](Runner& runner, Transport& transport, int32_t step) {
      if (step != 3) return;
      fails = true;
      const Rank own(transport.rank().value() % 2);
      EXPECT_THROW(runner.step(part_of(random_batch(4, 12, 20, 99), runner.placement(), own),
                               {.microbatches = 4}),
                   Error);
      // Every rank has thrown before one of them goes on.
      runner.recover();
      fails = false;
    };
    world.run([&](Transport& transport) {
      const ShardOutcome got = train_sharded(transport, failing, kind);
      const ShardOutcome& want = expected[transport.rank().position()];
      EXPECT_EQ(difference("losses", got.losses, want.losses), "");
      EXPECT_EQ(difference("parameters", got.parameters, want.parameters), "");
    });
  }
}

// Between steps a rank has its pieces only; the gradient of a whole parameter is gone.
TEST(Sharding, ARankHoldsItsShare) {
  const ScheduleCase schedule{"Interleaved1F1B", 2, 2, 4};
  LocalWorld world(4);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(4, 256);
    const ScheduleSource source = schedule.source();
    const Rank own(transport.rank().value() % 2);
    Runner runner(
        transport, stages_on(model, source.placement(), own),
        runner_options(
            model, {.source = source, .seed = 7, .replicas = 2, .shard = ShardKind::kParameters}));
    const int64_t whole = 2 * (256 * 256 + 256) * 4;  // bytes of two stages
    for (int i = 0; i < 2; ++i) {
      runner.step(part_of(random_batch(4, 12, 256, 0), source.placement(), own),
                  {.microbatches = 4});
      EXPECT_EQ(runner.shards()->whole_bytes(), 0);
      EXPECT_LE(runner.shards()->piece_bytes(), whole / 2 * 1.05);
      for (const at::Tensor& parameter : runner.parameters()) {
        EXPECT_EQ(parameter.storage().nbytes(), 0U);
        EXPECT_FALSE(parameter.grad().defined());
      }
    }
  });
}

TEST(Sharding, AnotherKindIsAnErrorOnEveryRank) {
  const ScheduleCase schedule{"1F1B", 1, 1, 2};
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    const TestModel model = chain_model(1, 20);
    const ScheduleSource source = schedule.source();
    const ShardKind kind =
        transport.rank() == Rank(0) ? ShardKind::kGradients : ShardKind::kParameters;
    Runner runner(
        transport, stages_on(model, source.placement(), Rank(0)),
        runner_options(model, {.source = source, .seed = 7, .replicas = 2, .shard = kind}));
    EXPECT_ERROR(runner.step(part_of(random_batch(2, 6, 20, 0), source.placement(), Rank(0)),
                             {.microbatches = 2}),
                 MetadataError, "what replicas shard is gradients on rank 0, parameters on rank 1");
  });
}

}  // namespace
}  // namespace stagecraft
