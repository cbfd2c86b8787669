// What ranks compare before they begin, and the table of where they are when one waits in vain.

#include <chrono>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/stage/callable.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

// What each of two ranks throws in `body`.
std::vector<std::string> thrown_on_both(const std::function<void(Transport&)>& body) {
  std::vector<std::string> messages(2);
  LocalWorld world(2);
  world.run([&](Transport& transport) {
    try {
      body(transport);
    } catch (const MetadataError& error) {
      messages[static_cast<std::size_t>(transport.rank().value())] = error.what();
    }
  });
  return messages;
}

struct Setup {
  std::string schedule = "1F1B";
  PipelineOptions options = {};
  int32_t microbatches = 4;
  bool is_training = true;
  uint64_t completed = 0;
  int32_t ranks = 2;
  std::optional<int32_t> stages_per_rank = std::nullopt;
  c10::DeviceType device = c10::kCPU;
};

void run_setup(Transport& transport, const Setup& setup) {
  const auto source = ScheduleSource::named(setup.schedule, setup.ranks, setup.stages_per_rank);
  TestModel model = chain_model(source.placement().num_stages(), 6);
  for (StageBody& body : model.bodies) {
    if (setup.device == c10::kCPU) continue;
    for (auto& [name, parameter] : body.parameters) {
      parameter = parameter.detach().to(setup.device).requires_grad_();
    }
  }
  const Rank place(transport.rank().value() % setup.ranks);
  PipelineOptions options = runner_options(model, setup.options);
  if (setup.options.ports) options.ports = setup.options.ports;
  options.ties = setup.options.ties;
  options.timeout = std::chrono::seconds(10);
  if (!options.seed) options.seed = 7;
  options.source = source;
  Runner runner(transport, stages_on(model, source.placement(), place), std::move(options));
  runner.set_completed_steps(setup.completed);
  const Microbatches batch =
      part_of(random_batch(setup.microbatches, 12, 6, 0), source.placement(), place);
  const StepOptions step{.microbatches = setup.microbatches};
  setup.is_training ? runner.step(batch, step) : runner.eval(batch, step);
}

void expect_difference(const Setup& first, const Setup& second, const std::string& text) {
  const Stopwatch watch;
  const auto messages = thrown_on_both([&](Transport& transport) {
    run_setup(transport, transport.rank() == Rank(0) ? first : second);
  });
  EXPECT_THAT(messages, ElementsAre(HasSubstr(text), HasSubstr(text)));
  EXPECT_LT(watch.seconds(), 5);
}

TEST(Agreement, AMismatchLeavesTheRecordingOfTheStepBefore) {
  const TestModel model = chain_model(2, 6);
  const auto source = ScheduleSource::named("1F1B", 2);
  run_spmd(source, model, {.seed = 7}, [&](Runner& runner, Transport& transport) {
    const auto step = [&](int32_t microbatches) {
      runner.step(
          part_of(random_batch(microbatches, 12, 6, 0), source.placement(), transport.rank()),
          {.microbatches = microbatches});
    };
    const int32_t wrong = transport.rank() == Rank(0) ? 4 : 3;
    EXPECT_THROW(step(wrong), MetadataError);
    EXPECT_ERROR(runner.recording(), ArgumentError, "there is no recording");
    step(2);
    EXPECT_THROW(step(wrong), MetadataError);
    EXPECT_EQ(runner.recording().schedule.num_microbatches(), 2);
    EXPECT_GT(runner.report().makespan, 0);
  });
}

TEST(Agreement, EveryRankIsToldWhichRankDiffersInWhat) {
  expect_difference({}, {.schedule = "GPipe"},
                    "the ranks do not agree: schedule is 1F1B on rank 0, GPipe on rank 1");
  expect_difference({.options = {.seed = 1}}, {.options = {.seed = 2}},
                    "seed is 1 on rank 0, 2 on rank 1");
  expect_difference({.schedule = "Interleaved1F1B", .stages_per_rank = 2},
                    {.schedule = "Interleaved1F1B", .stages_per_rank = 3},
                    "the number of stages is 4 on rank 0, 6 on rank 1");
  expect_difference({}, {.options = {.replicas = 2}, .ranks = 1},
                    "replicas is 1 on rank 0, 2 on rank 1");
  expect_difference({}, {.device = c10::kMeta}, "device type is cpu on rank 0, meta on rank 1");
  Ports skip(2);
  skip.connect({StageId(0), 0}, {StageId(1), 0});
  expect_difference({}, {.options = {.ports = skip}}, "ports is a chain on rank 0");
  expect_difference({}, {.options = {.ties = {{{StageId(0), "weight"}, {StageId(1), "weight"}}}}},
                    "tied weights is none on rank 0, weight of stage 0 = weight of stage 1 on "
                    "rank 1");
}

TEST(Agreement, ARankWithoutParametersFitsAnyDeviceType) {
  TestModel model = chain_model(2, 6);
  model.bodies[0] = stage_body([](const at::Tensor& x) { return x.mul(2); });
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  run_spmd(source, model, {.seed = 7}, [&](Runner& runner, Transport& transport) {
    EXPECT_NO_THROW(
        runner.step(part_of(random_batch(4, 12, 6, 0), source.placement(), transport.rank()),
                    {.microbatches = 4}));
  });
}

TEST(Agreement, OnEachStep) {
  expect_difference({}, {.microbatches = 6},
                    "the number of microbatches is 4 on rank 0, 6 on rank 1");
  expect_difference({}, {.is_training = false}, "the call is step on rank 0, eval on rank 1");
  expect_difference({}, {.completed = 3},
                    "the number of completed steps is 0 on rank 0, 3 on rank 1");
}

// The schedules differ only in the order of their actions.
TEST(Agreement, OnASchedulesActions) {
  const auto messages = thrown_on_both([](Transport& transport) {
    const TestModel model = chain_model(2, 6);
    const auto named = ScheduleSource::named(transport.rank() == Rank(0) ? "1F1B" : "GPipe", 2);
    const auto source = ScheduleSource::fixed(*named.training(4, StageGraph::chain(2)));
    Runner runner(transport, stages_on(model, source.placement(), transport.rank()),
                  runner_options(model, {.source = source, .seed = 7}));
    runner.step(part_of(random_batch(4, 12, 6, 0), source.placement(), transport.rank()),
                {.microbatches = 4});
  });
  EXPECT_THAT(messages, testing::Each(HasSubstr("the schedule's checksum is ")));
}

// The table ----------------------------------------------------------------------------------

/// What is announced while it lives.
class Announced {
 public:
  Announced() {
    set_log_sink([this](LogLevel, std::string_view text) {
      const std::lock_guard lock(mutex_);
      lines_.emplace_back(text);
    });
  }
  ~Announced() { set_log_sink({}); }
  Announced(const Announced&) = delete;
  Announced& operator=(const Announced&) = delete;

  std::vector<std::string> take() {
    const std::lock_guard lock(mutex_);
    return std::move(lines_);
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> lines_;
};

TEST(Progress, TheFirstMissedDeadlinePrintsWhereEveryRankIs) {
  Announced announced;
  TestModel model = chain_model(3, 6);
  std::atomic<int> calls = 0;
  model.bodies[1].forward = [&, inner = model.bodies[1].forward](const Args& args,
                                                                 const Kwargs& kwargs) {
    if (calls++ == 1) std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    return inner(args, kwargs);
  };
  Pipeline pipeline = make_pipeline(model, {"1F1B", 3, 1, 6},
                                    {.timeout = std::chrono::milliseconds(400), .seed = 7});
  EXPECT_THROW(pipeline.step(random_batch(6, 12, 6, 0)), TimeoutError);
  const auto lines = announced.take();
  ASSERT_EQ(lines.size(), 1U) << testing::PrintToString(lines);
  EXPECT_THAT(lines[0],
              AllOf(HasSubstr("waited"), HasSubstr("rank  last action"),
                    testing::ContainsRegex("0 +0[A-Z_]+[0-9] of step 1"),
                    testing::ContainsRegex("1 +1[A-Z_]+[01] of step 1 +1F1 +-"),
                    testing::ContainsRegex("2 +.* values of stage 1 for stage 2, "
                                           "microbatch 1, step 1, for [0-9.]+ s +rank 1")));
}

TEST(Progress, ARankThatDoesNotComeIsSeenToBeElsewhere) {
  Announced announced;
  const TestModel model = chain_model(2, 6);
  const ScheduleSource source = ScheduleSource::named("1F1B", 2);
  LocalWorld world(2);
  EXPECT_THROW(world.run([&](Transport& transport) {
    Runner runner(
        transport, stages_on(model, source.placement(), transport.rank()),
        runner_options(model,
                       {.source = source, .timeout = std::chrono::milliseconds(300), .seed = 7}));
    const Microbatches batch =
        part_of(random_batch(4, 8, 6, 0), source.placement(), transport.rank());
    runner.step(batch, {.microbatches = 4});
    if (transport.rank() == Rank(1)) std::this_thread::sleep_for(std::chrono::milliseconds(900));
    runner.step(batch, {.microbatches = 4});
  }),
               TimeoutError);
  const auto lines = announced.take();
  ASSERT_EQ(lines.size(), 1U) << testing::PrintToString(lines);
  EXPECT_THAT(lines[0], AllOf(HasSubstr("rank 0, at the beginning of the step: "),
                              testing::ContainsRegex("0 +0RESHARD of step 1 +- +all ranks to "
                                                     "begin the step, for [0-9.]+ s"),
                              testing::ContainsRegex("1 +1RESHARD of step 1 +- +- +-")));
}

TEST(Progress, OffMeansOff) {
  Announced announced;
  set_log_level(LogLevel::kOff);
  announce("not this");
  set_log_level(LogLevel::kError);
  announce("this");
  EXPECT_THAT(announced.take(), ElementsAre("this"));
}

TEST(Progress, ATableSaysWhoIsSilentOrLost) {
  const std::vector<HeardProgress> ranks = {
      {.progress = RankProgress{"0F1 of step 2", "0B0", "gradients", 1, std::chrono::seconds(3)}},
      {.progress = RankProgress{"1F0 of step 2", "", "", -1, {}}, .age = std::chrono::seconds(9)},
      {.is_lost = true}};
  EXPECT_EQ(progress_table(ranks),
            "  rank  last action         is in  waits for             from\n"
            "  0     0F1 of step 2       0B0    gradients, for 3.0 s  rank 1\n"
            "  1     1F0 of step 2       -      -                     -       silent for 9.0 s\n"
            "  2     (nothing reported)                                       lost");
}

}  // namespace
}  // namespace stagecraft
