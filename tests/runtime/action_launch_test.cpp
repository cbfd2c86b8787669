// Compute actions of a Runner as graphs, against a device that is not there.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/base/wait_tick.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/transport/local/local_world.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_graph_device.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

constexpr uint64_t kRunnerSeed = 9;

/// Gradients and losses by step, and how rank 0 launched.
struct RunnerTraining {
  std::vector<std::vector<at::Tensor>> grads;
  std::vector<std::vector<double>> losses;
  LaunchCounts counts;
};

RunnerTraining train_runners(const ScheduleSource& source, const TestModel& model, GraphMode graphs,
                             const std::vector<std::pair<int32_t, int64_t>>& sizes) {
  RunnerTraining result;
  result.grads.resize(sizes.size());
  result.losses.resize(sizes.size());
  run_spmd(
      source, model, {.seed = kRunnerSeed, .graphs = graphs},
      [&](Runner& runner, Transport& transport) {
        const auto meet = [&] { transport.barrier(Deadline::after(std::chrono::seconds(60))); };
        for (std::size_t step = 0; step < sizes.size(); ++step) {
          const Microbatches batch = random_batch(sizes[step].first, sizes[step].second, 5, step);
          const StepResult own = runner.step(part_of(batch, source.placement(), transport.rank()),
                                             {.microbatches = sizes[step].first});
          meet();
          for (const at::Tensor& loss : own.losses) {
            result.losses[step].push_back(loss.item<double>());
          }
          if (transport.rank() == Rank(0)) {
            for (const at::Tensor& grad : take_grads(model.bodies)) {
              result.grads[step].push_back(grad.clone());
            }
          }
          meet();
        }
        if (transport.rank() == Rank(0)) result.counts = runner.launches();
      });
  return result;
}

void expect_same_training(const RunnerTraining& expected, const RunnerTraining& got) {
  EXPECT_EQ(expected.losses, got.losses);
  for (std::size_t i = 0; i < expected.grads.size(); ++i) {
    EXPECT_EQ(difference("grads", expected.grads[i], got.grads[i]), "") << i;
  }
}

class ActionLaunch : public testing::Test {
 protected:
  FakeGraphDevices devices_;
};

TEST_F(ActionLaunch, ReplayedActionsHaveTheBitsOfThoseThatAreRunInEverySchedule) {
  for (const int32_t ranks : {2, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const TestModel model = chain_model(each.stages());
      const std::vector<std::pair<int32_t, int64_t>> sizes(
          5, {each.microbatches, 3 * each.microbatches});
      const GraphMode graphs = ranks == 2 ? GraphMode::kAuto : GraphMode::kOn;
      const RunnerTraining got = train_runners(each.source(), model, graphs, sizes);
      expect_same_training(train_runners(each.source(), model, GraphMode::kOff, sizes), got);
      EXPECT_EQ(got.counts.run, 2);
      EXPECT_EQ(got.counts.captured, 1);
      EXPECT_EQ(got.counts.replayed, 3);
    }
  }
}

TEST_F(ActionLaunch, RandomNumbersAreThoseOfTheStep) {
  TestModel model = chain_model(2);
  for (StageBody& body : model.bodies) {
    body.forward = [inner = body.forward](const Args& args, const Kwargs& kwargs) -> c10::IValue {
      return at::dropout(inner(args, kwargs).toTensor(), 0.4, true);
    };
  }
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  const std::vector<std::pair<int32_t, int64_t>> sizes(6, {4, 12});
  const RunnerTraining got = train_runners(source, model, GraphMode::kOn, sizes);
  expect_same_training(train_runners(source, model, GraphMode::kOff, sizes), got);
  EXPECT_EQ(got.counts.replayed, 4);
}

// The rank in the middle has no batch, and learns of its shapes before the step.
TEST_F(ActionLaunch, ChangingShapesAreOtherGraphsOnAllRanks) {
  const TestModel model = chain_model(3);
  const ScheduleSource source = ScheduleSource::named("1F1B", 3);
  std::vector<std::pair<int32_t, int64_t>> sizes;
  for (int i = 0; i < 5; ++i) sizes.insert(sizes.end(), {{4, 12}, {4, 14}, {6, 14}});
  const RunnerTraining got = train_runners(source, model, GraphMode::kOn, sizes);
  expect_same_training(train_runners(source, model, GraphMode::kOff, sizes), got);
  EXPECT_EQ(got.counts.captured, 3);
  EXPECT_EQ(got.counts.replayed, 9);
}

/// What a training with graphs announced.
struct AnnouncedTraining {
  RunnerTraining training;
  std::vector<std::string> lines;
};

AnnouncedTraining train_announced(const ScheduleSource& source, const TestModel& model,
                                  const std::vector<std::pair<int32_t, int64_t>>& sizes) {
  AnnouncedTraining result;
  set_log_sink([&](LogLevel, std::string_view line) { result.lines.emplace_back(line); });
  result.training = train_runners(source, model, GraphMode::kAuto, sizes);
  set_log_sink({});
  return result;
}

// Alone, in two halves, as a part of an overlap, and with a forward that is computed again.
TEST_F(ActionLaunch, ABackwardThatCannotBeCapturedIsRunAndNamed) {
  for (const bool recompute : {false, true}) {
    for (const ScheduleCase& each :
         {ScheduleCase{"1F1B", 2, 1, 4}, ScheduleCase{"ZBVZeroBubble", 2, 2, 4},
          ScheduleCase{"DualPipeV", 2, 2, 6}}) {
      for (int32_t refused = 0; refused < each.stages(); ++refused) {
        SCOPED_TRACE(to_string(each) + ", stage " + std::to_string(refused));
        TestModel model = chain_model(each.stages());
        StageBody& body = model.bodies[static_cast<std::size_t>(refused)];
        body.forward = [inner = body.forward](const Args& args,
                                              const Kwargs& kwargs) -> c10::IValue {
          const at::Tensor y = inner(args, kwargs).toTensor();
          if (y.requires_grad()) {
            y.register_hook([](const at::Tensor& grad) {
              return grad.abs().max().item<float>() >= 0 ? grad * 2 : grad;
            });
          }
          return y;
        };
        model.options.assign(static_cast<std::size_t>(each.stages()), {.recompute = recompute});
        const std::vector<std::pair<int32_t, int64_t>> sizes(5, {each.microbatches, 24});
        const AnnouncedTraining got = train_announced(each.source(), model, sizes);
        expect_same_training(train_runners(each.source(), model, GraphMode::kOff, sizes),
                             got.training);
        ASSERT_EQ(got.lines.size(), 1U);
        EXPECT_THAT(got.lines[0], testing::ContainsRegex(std::to_string(refused) +
                                                         "[BI][0-9]+ cannot be captured"));
      }
    }
  }
}

// An interrupt is no reason to refuse the actions as graphs, and leaves no gradients of the
// capture.
TEST_F(ActionLaunch, AnInterruptInACaptureEndsTheStepAndTheNextOneIsCaptured) {
  for (const bool in_backward : {false, true}) {
    SCOPED_TRACE(in_backward);
    TestModel model = chain_model(1);
    bool is_interrupted = false;
    const auto end_if_interrupted = [&] {
      if (is_interrupted) throw InterruptedError("interrupted");
    };
    model.bodies[0].forward = [&, inner = model.bodies[0].forward](
                                  const Args& args, const Kwargs& kwargs) -> c10::IValue {
      if (!in_backward) end_if_interrupted();
      const at::Tensor y = inner(args, kwargs).toTensor();
      if (in_backward && y.requires_grad()) {
        y.register_hook([&](const at::Tensor&) { end_if_interrupted(); });
      }
      return y;
    };
    std::vector<std::string> lines;
    set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
    run_spmd(ScheduleSource::named("1F1B", 1), model, {.seed = kRunnerSeed},
             [&](Runner& runner, Transport&) {
               const Microbatches batch = random_batch(4, 12, 5, 0);
               std::vector<at::Tensor> expected;
               for (int step = 0; step < 2; ++step) {
                 runner.step(batch, {.microbatches = 4});
                 expected = take_grads(model.bodies);
               }
               is_interrupted = true;
               EXPECT_ERROR(runner.step(batch, {.microbatches = 4}), InterruptedError,
                            "interrupted");
               is_interrupted = false;
               runner.step(batch, {.microbatches = 4});
               EXPECT_EQ(difference("grads", expected, take_grads(model.bodies)), "");
               EXPECT_EQ(runner.launches().captured, 1);
             });
    set_log_sink({});
    EXPECT_TRUE(lines.empty()) << lines.front();
  }
}

// Its input comes from a stage of the same rank.
TEST_F(ActionLaunch, AForwardThatIsRunInsteadStillHasTheValuesOfItsOwnRank) {
  for (const ScheduleCase& each :
       {ScheduleCase{"ZBVZeroBubble", 2, 2, 4}, ScheduleCase{"DualPipeV", 2, 2, 6}}) {
    SCOPED_TRACE(to_string(each));
    TestModel model = chain_model(4);
    model.bodies[2].forward = [inner = model.bodies[2].forward](
                                  const Args& args, const Kwargs& kwargs) -> c10::IValue {
      const at::Tensor y = inner(args, kwargs).toTensor();
      return y.detach().abs().max().item<float>() > 0 ? y * 2 : y;
    };
    const std::vector<std::pair<int32_t, int64_t>> sizes(5, {each.microbatches, 24});
    const AnnouncedTraining got = train_announced(each.source(), model, sizes);
    expect_same_training(train_runners(each.source(), model, GraphMode::kOff, sizes), got.training);
    ASSERT_EQ(got.lines.size(), 1U);
    EXPECT_THAT(got.lines[0], testing::HasSubstr("2F0 cannot be captured"));
  }
}

// The same number in the first steps: a replay could not change it.
TEST_F(ActionLaunch, NumbersOfOtherRanksAreNotFrozenByDefault) {
  const auto scale = std::make_shared<int64_t>(2);
  TestModel model = chain_model(2);
  model.bodies[0].forward = [inner = model.bodies[0].forward, scale](
                                const Args& args, const Kwargs& kwargs) -> c10::IValue {
    return c10::ivalue::Tuple::create({inner(args, kwargs), *scale});
  };
  model.bodies[1].forward = [inner = model.bodies[1].forward](const Args& args,
                                                              const Kwargs&) -> c10::IValue {
    return inner({args[0].toTensor() * args[1].toInt()}, {});
  };
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  const std::vector<std::pair<int32_t, int64_t>> sizes(5, {4, 12});
  const AnnouncedTraining got = train_announced(source, model, sizes);
  expect_same_training(train_runners(source, model, GraphMode::kOff, sizes), got.training);
  ASSERT_EQ(got.lines.size(), 1U);
  EXPECT_THAT(got.lines[0], testing::HasSubstr("1F0 takes a value of a different rank that is not "
                                               "a tensor"));
}

TEST_F(ActionLaunch, AForwardThatCannotBeCapturedIsRunAndNamed) {
  TestModel model = chain_model(2);
  model.bodies[0].forward = [inner = model.bodies[0].forward](const Args& args,
                                                              const Kwargs& kwargs) -> c10::IValue {
    const at::Tensor y = inner(args, kwargs).toTensor();
    return y.detach().abs().max().item<float>() > 0 ? y * 2 : y;
  };
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  const std::vector<std::pair<int32_t, int64_t>> sizes(5, {4, 12});
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  const RunnerTraining got = train_runners(source, model, GraphMode::kOn, sizes);
  set_log_sink({});
  expect_same_training(train_runners(source, model, GraphMode::kOff, sizes), got);
  EXPECT_EQ(got.counts.replayed, 0);
  EXPECT_EQ(got.counts.run, 5);
  ASSERT_EQ(lines.size(), 1U);
  EXPECT_THAT(lines[0], testing::HasSubstr("0F0 cannot be captured as a graph"));
}

// As over NCCL.
class DeviceTransport final : public FaultyTransport {
 public:
  using FaultyTransport::FaultyTransport;
  bool waits_on_device() const override { return true; }
};

TEST_F(ActionLaunch, WhereTheDeviceWaitsForOtherRanksItMustBeAskedFor) {
  for (const GraphMode graphs : {GraphMode::kAuto, GraphMode::kOn}) {
    const TestModel model = chain_model(1);
    const ScheduleSource source = ScheduleSource::named("1F1B", 1);
    LocalWorld world(1);
    DeviceTransport transport(world.transport(Rank(0)));
    Runner runner(transport, stages_on(model, source.placement(), Rank(0)),
                  runner_options(model, {.source = source, .graphs = graphs}));
    for (int step = 0; step < 4; ++step) {
      runner.step(random_batch(2, 6, 5, 0), {.microbatches = 2});
      take_grads(model.bodies);
    }
    EXPECT_EQ(runner.launches().replayed, graphs == GraphMode::kOn ? 2 : 0);
  }
}

TEST_F(ActionLaunch, IsRefusedWhereGradientsAreExchanged) {
  TestModel model = chain_model(2);
  model.ties = {{{StageId(0), "weight"}, {StageId(1), "weight"}}};
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  EXPECT_ERROR(run_spmd(source, model, {.graphs = GraphMode::kOn}, [](Runner&, Transport&) {}),
               ArgumentError, "tied weights");
  // By default its steps are run.
  run_spmd(source, model, {.graphs = GraphMode::kAuto},
           [](Runner& runner, Transport&) { EXPECT_EQ(runner.launches().run, 0); });
}

}  // namespace
}  // namespace stagecraft
