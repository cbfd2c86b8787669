// Times and memory of a device, against one that is not there: tests/support/fake_device_probe.h.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/report.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"
#include "tests/support/fake_device_probe.h"
#include "tests/support/fake_graph_device.h"
#include "tests/support/models.h"

namespace stagecraft {
namespace {

constexpr int64_t kCost = 5'000'000;  // 5 ms from mark to mark: longer than the host needs

class DeviceTimelines : public testing::Test {
 protected:
  const FakeDeviceProbes probes_{kCost};
};

TEST_F(DeviceTimelines, AStepThatIsRunHasTheTimesAndTheMemoryOfItsDevice) {
  FakeDeviceProbes::set_memory({.allocated = 10, .peak_allocated = 70, .reserved = 100});
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  pipeline.step(random_batch(3, 9, 5, 0));
  const Recording recording = pipeline.recording();
  for (std::size_t r = 0; r < 2; ++r) {
    const RankRecording& rank = recording.ranks[r];
    const ActionList& list = recording.schedule.lists()[r];
    ASSERT_EQ(rank.device.size(), list.size());
    for (std::size_t i = 0; i < list.size(); ++i) {
      SCOPED_TRACE(to_string(list[i]));
      EXPECT_GE(rank.device[i].begin, 0);
      EXPECT_GT(rank.device[i].end, rank.device[i].begin);
      // Stage 1 takes activations from the other rank, stage 0 gradients.
      const ActionType takes = r == 0 ? ActionType::kBackward : ActionType::kForward;
      EXPECT_EQ(rank.device[i].ready >= 0, list[i].type() == takes);
    }
    ASSERT_TRUE(rank.device_memory);
    EXPECT_EQ(*rank.device_memory, (RankRecording::DeviceMemory{10, 70, 100}));
  }
  const StepReport report = make_report(recording);
  EXPECT_TRUE(report.ranks[0].is_device_time);
  EXPECT_NEAR(report.ranks[0].compute, 6 * kCost / 1000, 1);
  EXPECT_EQ(report.ranks[0].device_memory->peak_allocated, 70);
}

TEST_F(DeviceTimelines, AMeasuredStepHasAPeakOfItsOwn) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  pipeline.step(random_batch(3, 9, 5, 0));
  EXPECT_EQ(FakeDeviceProbes::num_resets(), 0);
  pipeline.step(random_batch(3, 9, 5, 0), {.measure_memory = true});
  EXPECT_GT(FakeDeviceProbes::num_resets(), 0);
}

TEST_F(DeviceTimelines, AReplayedStepHasItsOwnTimes) {
  const FakeGraphDevices graphs;
  FakeDeviceProbes::set_memory(
      {.allocated = 10, .peak_allocated = 70, .reserved = 100, .peak_reserved = 140});
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .graphs = GraphMode::kOn});
  for (const int32_t microbatches : {4, 4, 4, 6, 4}) {
    pipeline.step(random_batch(microbatches, 13, 5, 0));
    take_grads(model.bodies);
  }
  EXPECT_EQ(pipeline.launches().replayed, 2);
  EXPECT_EQ(pipeline.launches().peak_run, 140);
  EXPECT_EQ(pipeline.launches().peak_replayed, 140);
  const Recording recording = pipeline.recording();
  EXPECT_EQ(recording.schedule.num_microbatches(), 4);
  const StepReport report = make_report(recording);
  EXPECT_EQ(report.not_run, 0);
  for (const RankReport& rank : report.ranks) {
    EXPECT_TRUE(rank.is_replayed);
    EXPECT_NEAR(rank.compute, 8 * kCost / 1000, 1);
    EXPECT_NEAR(rank.bubble, 8 * kCost / 1000, 8 * kCost / 1000);
    EXPECT_GT(rank.bytes_sent, 0);
  }
  // The next step that is run has times of the host again.
  pipeline.step(random_batch(5, 13, 5, 0));
  EXPECT_FALSE(pipeline.report().ranks[0].is_replayed);
  EXPECT_TRUE(pipeline.report().ranks[0].host);
}

// The other rank would wait until its deadline, and throw a TimeoutError.
TEST_F(DeviceTimelines, ARankThatCannotBeginAStepEndsItOnAllRanks) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, {.ranks = 2, .timeout = std::chrono::seconds(5)});
  for (int round = 0; round < 2; ++round) {
    FakeDeviceProbes::fail_one_start("no memory for marks");
    EXPECT_ERROR(pipeline.step(random_batch(3, 9, 5, 0)), StageError, "no memory for marks");
    pipeline.step(random_batch(3, 9, 5, 0));
  }
}

TEST_F(DeviceTimelines, ADeviceThatHasFailedLeavesTheTimesOfTheHost) {
  const TestModel model = chain_model(2);
  Pipeline pipeline = make_pipeline(model, PipelineOptions{.ranks = 2});
  pipeline.step(random_batch(3, 9, 5, 0));
  std::vector<std::string> lines;
  set_log_sink([&](LogLevel, std::string_view line) { lines.emplace_back(line); });
  FakeDeviceProbes::set_failure("the device is gone");
  EXPECT_FALSE(pipeline.report().ranks[0].is_device_time);
  set_log_sink({});
  EXPECT_GT(pipeline.report().makespan, 0);
}

}  // namespace
}  // namespace stagecraft
