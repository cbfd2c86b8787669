// Compute actions of a Runner as graphs, against a device that is not there.

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/runner.h"
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
      const RunnerTraining got = train_runners(each.source(), model, GraphMode::kOn, sizes);
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

TEST_F(ActionLaunch, IsRefusedWhereGradientsAreExchanged) {
  TestModel model = chain_model(2);
  model.ties = {{{StageId(0), "weight"}, {StageId(1), "weight"}}};
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  EXPECT_ERROR(run_spmd(source, model, {.graphs = GraphMode::kOn}, [](Runner&, Transport&) {}),
               ArgumentError, "tied weights");
}

}  // namespace
}  // namespace stagecraft
