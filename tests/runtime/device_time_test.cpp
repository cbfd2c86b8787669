// Recordings of ranks whose actions ran on a device, in the device's time.

#include "stagecraft/runtime/record/device_time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/schedule/text.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using testing::Not;

constexpr int64_t kUs = 1000;

// Two ranks, one microbatch. The host launches everything within 40 us; the devices need longer.
//
//   rank 0   0F0 0..100   SEND_F 100..110             RECV_B   0B0 waits 110..330, runs ..400
//   rank 1   RECV_F   1F0 waits 5..120, runs ..220   1B0 220..320   SEND_B 320..325
Recording device_recording() {
  const Schedule schedule(
      Level::kLowered, Placement::loop(2, 2),
      {parse_actions("0F0,0SEND_F0,0RECV_B0,0B0"), parse_actions("1RECV_F0,1F0,1B0,1SEND_B0")});
  RankRecording zero;
  zero.actions = {
      {0, 10 * kUs}, {10 * kUs, 12 * kUs, 0, 64}, {12 * kUs, 13 * kUs}, {13 * kUs, 40 * kUs}};
  zero.device = {{0, -1, 100 * kUs},
                 {100 * kUs, -1, 110 * kUs},
                 {110 * kUs, -1, 110 * kUs},
                 {110 * kUs, 330 * kUs, 400 * kUs}};
  RankRecording one;
  one.actions = {
      {0, 1 * kUs}, {1 * kUs, 20 * kUs}, {20 * kUs, 30 * kUs}, {30 * kUs, 32 * kUs, 0, 64}};
  one.device = {{0, -1, 5 * kUs},
                {5 * kUs, 120 * kUs, 220 * kUs},
                {220 * kUs, -1, 320 * kUs},
                {320 * kUs, -1, 325 * kUs}};
  return {schedule, StageGraph::chain(2), {zero, one}};
}

TEST(DeviceTime, TimesWaitsAndCostsAreThoseOfTheDevice) {
  const Recording recording = device_recording();
  const StepReport report = make_report(recording);
  EXPECT_EQ(report.makespan, 400);
  EXPECT_TRUE(report.ranks[0].is_device_time);
  EXPECT_EQ(report.ranks[0].compute, 170);
  // Rank 1 sent at 325 what arrived at 330, and rank 0 at 110 what arrived at 120.
  EXPECT_EQ(report.ranks[0].waiting_for_gradients, 215);
  EXPECT_EQ(report.ranks[0].exposed_transfer, 5);
  EXPECT_EQ(report.ranks[1].compute, 200);
  EXPECT_EQ(report.ranks[1].start_up, 105);
  EXPECT_EQ(report.ranks[1].exposed_transfer, 10);
  EXPECT_EQ(report.ranks[1].run_out, 75);

  const Simulation run = to_simulation(recording);
  EXPECT_EQ(run.makespan, 400);
  EXPECT_EQ(run.timeline[0][3], (Interval{330, 400}));
  const CostModel costs = measured_costs(recording);
  ASSERT_EQ(costs.microbatches.size(), 2U);
  EXPECT_EQ(costs.microbatches[0].cost.forward, 100);
  EXPECT_EQ(costs.microbatches[0].cost.backward, 70);
}

// A graph takes the values of all parts of an overlap at its begin.
TEST(DeviceTime, AnOverlapWaitsForTheValuesOfItsParts) {
  Recording recording = device_recording();
  RankRecording& zero = recording.ranks[0];
  recording.schedule = Schedule(
      Level::kLowered, Placement::loop(2, 2),
      {parse_actions("0F0,0SEND_F0,0RECV_B0,(0F1;0B0)OVERLAP_F_B"), recording.schedule.lists()[1]});
  zero.actions.insert(zero.actions.end(), 2, {40 * kUs, 40 * kUs});
  zero.device.insert(zero.device.end(), 2, {400 * kUs, -1, 400 * kUs});
  const StepReport report = make_report(recording);
  // Rank 1 sent at 325 what arrived at 330.
  EXPECT_EQ(report.ranks[0].exposed_transfer, 5);
}

TEST(DeviceTime, AHostThatIsAheadIsNotLate) {
  const StepReport report = make_report(device_recording());
  ASSERT_TRUE(report.ranks[0].host);
  EXPECT_EQ(report.ranks[0].host->compute, 37);
  EXPECT_EQ(report.ranks[0].host->late, 0);
  EXPECT_EQ(report.ranks[0].host->launch_bound, 0);
  const std::string text = to_text(report);
  EXPECT_THAT(text, HasSubstr("rank 0: times of the device; the host took 37.0 us to launch the "
                              "compute\n"));
  EXPECT_THAT(text, Not(HasSubstr("late")));
}

TEST(DeviceTime, ALateHostIsNamed) {
  const Schedule schedule(Level::kLowered, Placement::loop(1, 1), {parse_actions("0F0,0B0")});
  RankRecording rank;
  rank.actions = {{0, 30 * kUs * 1000}, {71 * kUs * 1000, 100 * kUs * 1000}};
  // 0F0 was done at 30 ms, as soon as it was launched. 0B0 was launched 41 ms later, and takes
  // longer than its launch.
  rank.device = {{0, -1, 30'005 * kUs}, {71'005 * kUs, -1, 130'000 * kUs}};
  rank.device_memory = {1 << 20, 3 << 20, 4 << 20};
  const Recording recording{schedule, StageGraph::chain(1), {rank}};
  const StepReport report = make_report(recording);
  ASSERT_TRUE(report.ranks[0].host);
  EXPECT_NEAR(report.ranks[0].host->late, 41'000, 10);
  EXPECT_NEAR(report.ranks[0].host->launch_bound, 30'005, 10);
  const std::string text = to_text(report);
  EXPECT_THAT(text,
              HasSubstr("the host took 59.0 ms to launch the compute and was late by 41.0 ms; "
                        "launching took as long as computing for 30.0 ms of the compute"));
  EXPECT_THAT(text, HasSubstr("memory of the device: peak 3.0 MiB allocated, 4.0 MiB reserved"));
}

TEST(DeviceTime, RanksOfAReplayedStepTakeTurns) {
  Recording recording = device_recording();
  const auto chain = [](RankRecording& rank, std::vector<RankRecording::DeviceTimes> times) {
    for (auto& each : rank.actions) each = {.sent = each.sent};
    rank.is_replayed = true;
    rank.device = std::move(times);
  };
  chain(recording.ranks[0], {{0, -1, 100 * kUs},
                             {100 * kUs, -1, 100 * kUs},
                             {100 * kUs, -1, 100 * kUs},
                             {300 * kUs, -1, 400 * kUs}});
  chain(recording.ranks[1], {{0, -1, 0},
                             {100 * kUs, -1, 200 * kUs},
                             {200 * kUs, -1, 300 * kUs},
                             {300 * kUs, -1, 300 * kUs}});
  const StepReport report = make_report(recording);
  EXPECT_EQ(report.makespan, 400);
  for (const RankReport& rank : report.ranks) {
    EXPECT_TRUE(rank.is_replayed);
    EXPECT_FALSE(rank.host);
    EXPECT_EQ(rank.compute, 200);
    EXPECT_EQ(rank.bubble, 200);
    EXPECT_EQ(rank.other, 0);
  }
  EXPECT_EQ(report.not_run, 0);
  EXPECT_THAT(to_text(report), HasSubstr("the step was one launch"));
  EXPECT_EQ(to_simulation(recording).timeline[0][3], (Interval{300, 400}));
}

TEST(DeviceTime, ARankWithoutADeviceKeepsTheTimesOfTheHost) {
  Recording recording = device_recording();
  recording.ranks[1].device.clear();
  const StepReport report = make_report(recording);
  EXPECT_FALSE(report.ranks[1].is_device_time);
  EXPECT_EQ(report.ranks[1].compute, 29);
  // The gradients left the host of rank 1 at 32.
  EXPECT_EQ(report.ranks[0].exposed_transfer, 220);
}

}  // namespace
}  // namespace stagecraft
