#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/text.h"
#include "tests/runtime/step_times.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using testing::Not;

/// Two stages on two ranks, one microbatch.
///
///   rank 0   0F0 0-10, send 10-12, 0B0 waits 12-70 for what was sent at 55, 0B0 70-80
///   rank 1   1F0 waits 0-20 for what was sent at 12, 1F0 20-30, 1B0 30-50, send 50-55
Recording small_recording() {
  const Schedule schedule(
      Level::kLowered, Placement::loop(2, 2),
      {parse_actions("0F0,0SEND_F0,0RECV_B0,0B0"), parse_actions("1RECV_F0,1F0,1B0,1SEND_B0")});
  Recorder zero;
  zero.start(4, kZero);
  zero.begin(0, at(0));
  zero.end(0, at(10));
  zero.begin(1, at(10));
  zero.add_sent(1000);
  zero.end(1, at(12));
  zero.begin(2, at(12));
  zero.end(2, at(12));
  zero.begin(3, at(12));
  zero.begin_wait(3, at(12));
  zero.end_wait(at(55), at(70));
  zero.add_received(1000);
  zero.end(3, at(80));
  zero.set_peak_memory(4096);

  Recorder one;
  one.start(4, kZero);
  one.begin(0, at(0));
  one.end(0, at(0));
  one.begin(1, at(0));
  one.begin_wait(1, at(0));
  one.end_wait(at(12), at(20));
  one.end(1, at(30));
  one.begin(2, at(30));
  one.end(2, at(50));
  one.begin(3, at(50));
  one.end(3, at(55));
  return {schedule, StageGraph::chain(2), {zero.take(), one.take()}};
}

/// The same step when 1B0 throws at 45: it is the last that rank 1 did, and rank 0 still waits.
Recording failed_recording() {
  Recording recording = small_recording();
  RankRecording& zero = recording.ranks[0];
  zero.actions[3] = {12000, -1, 0};
  zero.waits[0] = {.offset = 3, .begin = 12000};
  RankRecording& one = recording.ranks[1];
  one.actions[2].end = 45000;
  one.actions[3] = {};
  return recording;
}

TEST(ToSimulation, StartsAnActionWhenItsWaitingEnds) {
  const Simulation run = to_simulation(small_recording());
  const std::vector<Interval> zero = {{0, 10}, {10, 12}, {12, 12}, {70, 80}};
  const std::vector<Interval> one = {{0, 0}, {20, 30}, {30, 50}, {50, 55}};
  EXPECT_EQ(run.timeline, (std::vector{zero, one}));
  EXPECT_EQ(run.makespan, 80);
  EXPECT_EQ(run.span, 80);
  EXPECT_EQ(run.transfers, 2);
  EXPECT_EQ(run.ranks[0].busy, 20);
  EXPECT_EQ(run.ranks[1].busy, 30);
  EXPECT_EQ(run.ranks[1].first_start, 20);
  EXPECT_EQ(run.ranks[1].last_end, 50);
  EXPECT_EQ(run.ranks[0].bubble, 0.75);
  EXPECT_EQ(run.bubble, 1 - 50 / 160.0);
  EXPECT_EQ(run.ranks[0].exposed_transfer, 15);
  EXPECT_EQ(run.ranks[1].exposed_transfer, 8);
  EXPECT_EQ(run.exposed_transfer, 23);
  EXPECT_EQ(run.ranks[0].transfers_sent, 1);
  EXPECT_EQ(run.peak_memory, 4096);
}

TEST(ToSimulation, LeavesOutWhatDidNotRun) {
  const Simulation run = to_simulation(failed_recording());
  EXPECT_EQ(run.makespan, 45);
  EXPECT_EQ(run.timeline[0][3], (Interval{45, 45}));  // it never got beyond waiting
  EXPECT_EQ(run.timeline[1][2], (Interval{30, 45}));
  EXPECT_FALSE(run.timeline[1][3].ran());
  EXPECT_EQ(run.transfers, 1);
}

TEST(ToSimulation, TakesAnActionWithoutAnEndToTheLastTime) {
  Recording recording = failed_recording();
  recording.ranks[1].actions[2].end = -1;
  recording.ranks[0].actions[3] = {60000, 62000, 0};
  recording.ranks[0].waits.clear();
  EXPECT_EQ(to_simulation(recording).timeline[1][2], (Interval{30, 62}));
}

TEST(ToSimulation, TakesARecordingOfNothing) {
  Recording recording = small_recording();
  for (RankRecording& rank : recording.ranks) {
    rank = {};
    rank.actions.resize(4);
  }
  const Simulation run = to_simulation(recording);
  EXPECT_EQ(run.makespan, 0);
  EXPECT_EQ(run.bubble, 0);
  EXPECT_EQ(make_report(recording).not_run, 8);
  EXPECT_EQ(simulate(recording.schedule, measured_costs(recording), recording.graph).makespan, 0);
}

TEST(ToSimulation, SpansTheParts) {
  const Schedule schedule(Level::kLowered, Placement::loop(1, 1),
                          {parse_actions("0F0,(0F1;0B0)OVERLAP_F_B,0B1")});
  Recorder recorder;
  recorder.start(5, kZero);
  recorder.begin(0, at(0));
  recorder.end(0, at(1));
  recorder.begin(1, at(1));
  recorder.begin(2, at(2));
  recorder.end(2, at(4));
  recorder.begin(3, at(5));
  recorder.end(3, at(8));
  recorder.end(1, at(9));
  Recording recording{schedule, StageGraph::chain(1), {recorder.view()}};
  const Simulation run = to_simulation(recording);
  EXPECT_EQ(run.timeline[0][1], (Interval{2, 8}));
  EXPECT_EQ(run.ranks[0].busy, 6);
  EXPECT_EQ(make_report(recording).not_run, 1);

  recording.ranks[0].actions[3] = {};  // its second part never came
  EXPECT_EQ(to_simulation(recording).timeline[0][1], (Interval{2, 4}));
  EXPECT_FALSE(to_simulation(recording).timeline[0][3].ran());
}

TEST(ToSimulation, RefusesARecordingOfAnotherSchedule) {
  Recording recording = small_recording();
  recording.ranks[1].actions.pop_back();
  EXPECT_ERROR(to_simulation(recording), ArgumentError,
               "rank 1 has 3 actions in the recording, but 4 in the schedule");
  recording.ranks.pop_back();
  EXPECT_ERROR(make_report(recording), ArgumentError, "it has 1 ranks, but the schedule has 2");
  recording = small_recording();
  recording.ranks[0].waits[0].offset = 4;
  EXPECT_ERROR(measured_costs(recording), ArgumentError,
               "waited in action 4, but its list has 4 actions");
  recording = small_recording();
  recording.graph = StageGraph::chain(3);
  EXPECT_ERROR(to_simulation(recording), ArgumentError, "has 3 stages, but the schedule has 2");
}

/// Plays a simulation of a chain of stages into recorders, as runners that take no time of their
/// own would.
Recording play(const Schedule& schedule, const Simulation& simulation) {
  const auto end_of = [&](ActionType type, StageId stage, MicrobatchId m) -> std::optional<double> {
    for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
      const ActionList& list = schedule.lists()[r];
      for (std::size_t i = 0; i < list.size(); ++i) {
        if (is_compute(list[i].type()) && list[i] == Action(stage, type, m)) {
          return simulation.timeline[r][i].end;
        }
      }
    }
    return std::nullopt;
  };
  // When the last value that the action reads was made.
  const auto made = [&](Action action) {
    const StageId s = action.stage();
    const MicrobatchId m = action.microbatch();
    if (action.type() == ActionType::kForward) {
      return s.value() == 0 ? 0 : end_of(ActionType::kForward, s - 1, m).value();
    }
    if (action.type() == ActionType::kBackwardWeight || s.value() + 1 == schedule.num_stages()) {
      return 0.0;
    }
    const auto full = end_of(ActionType::kBackward, s + 1, m);
    return full ? *full : end_of(ActionType::kBackwardInput, s + 1, m).value();
  };
  Recording recording{schedule, StageGraph::chain(schedule.num_stages()), {}};
  for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
    const std::vector<Interval>& timeline = simulation.timeline[r];
    Recorder recorder;
    recorder.start(timeline.size(), kZero);
    double now = 0;
    for (const Slot& slot : schedule.slots(Rank(static_cast<int32_t>(r)))) {
      const Interval whole = timeline[slot.offset()];
      recorder.begin(slot.offset(), at(now));
      if (whole.start > now) {
        double sent = 0;
        for (const Action part : slot.parts()) sent = std::max(sent, made(part));
        recorder.begin_wait(slot.offset(), at(now));
        recorder.end_wait(at(sent), at(whole.start));
      }
      for (std::size_t i = 0; slot.is_overlap() && i < slot.parts().size(); ++i) {
        recorder.begin(slot.parts_offset() + i, at(timeline[slot.parts_offset() + i].start));
        recorder.end(slot.parts_offset() + i, at(timeline[slot.parts_offset() + i].end));
      }
      recorder.end(slot.offset(), at(whole.end));
      now = whole.end;
    }
    recording.ranks.push_back(recorder.take());
  }
  return recording;
}

void expect_same(const Simulation& run, const Simulation& plan, const std::string& name) {
  EXPECT_EQ(run.timeline, plan.timeline) << name;
  EXPECT_EQ(run.makespan, plan.makespan) << name;
  EXPECT_EQ(run.span, plan.span) << name;
  EXPECT_EQ(run.bubble, plan.bubble) << name;
  EXPECT_EQ(run.exposed_transfer, plan.exposed_transfer) << name;
  EXPECT_EQ(run.transfers, plan.transfers) << name;
  for (std::size_t r = 0; r < plan.ranks.size(); ++r) {
    EXPECT_EQ(run.ranks[r].first_start, plan.ranks[r].first_start) << name << " rank " << r;
    EXPECT_EQ(run.ranks[r].last_end, plan.ranks[r].last_end) << name << " rank " << r;
    EXPECT_EQ(run.ranks[r].busy, plan.ranks[r].busy) << name << " rank " << r;
    EXPECT_EQ(run.ranks[r].bubble, plan.ranks[r].bubble) << name << " rank " << r;
    EXPECT_EQ(run.ranks[r].exposed_transfer, plan.ranks[r].exposed_transfer) << name << " " << r;
    EXPECT_EQ(run.ranks[r].transfers_sent, plan.ranks[r].transfers_sent) << name << " " << r;
  }
}

TEST(ToSimulation, GivesBackASimulationThatWasPlayed) {
  CostModel costs = parse_costs("F=18,I=17,W=9,C=4");
  costs.overlap = 0.5;
  for (const char* name : {"GPipe", "1F1B", "Interleaved1F1B", "InterleavedZeroBubble",
                           "ZBVZeroBubble", "DualPipeV"}) {
    const Schedule schedule = lower(build_schedule(name, {.ranks = 4, .microbatches = 8}));
    const Simulation plan = simulate(schedule, costs);
    ASSERT_GT(plan.exposed_transfer, 0) << name;
    expect_same(to_simulation(play(schedule, plan)), plan, name);
  }
}

TEST(MeasuredCosts, ReplayTheStepWithFreeTransfers) {
  const Recording recording = small_recording();
  const CostModel costs = measured_costs(recording);
  ASSERT_EQ(costs.microbatches.size(), 2U);
  EXPECT_EQ(costs.microbatches[0].cost.forward, 10);
  EXPECT_EQ(costs.microbatches[0].cost.backward, 10);
  EXPECT_EQ(costs.microbatches[1].cost.forward, 10);
  EXPECT_EQ(costs.microbatches[1].cost.backward, 20);
  EXPECT_EQ(simulate(recording.schedule, costs, recording.graph).makespan, 50);
}

TEST(MeasuredCosts, ReplayWithoutLatencyIsTheSimulationWithoutLatency) {
  const CostModel costs = parse_costs("F=18,I=17,W=9,C=4");
  const CostModel free = parse_costs("F=18,I=17,W=9");
  for (const char* name : {"1F1B", "InterleavedZeroBubble", "ZBVZeroBubble", "DualPipeV"}) {
    const Schedule schedule = lower(build_schedule(name, {.ranks = 4, .microbatches = 8}));
    const Recording recording = play(schedule, simulate(schedule, costs));
    const Simulation replay = simulate(schedule, measured_costs(recording), recording.graph);
    EXPECT_EQ(replay.timeline, simulate(schedule, free).timeline) << name;
  }
}

TEST(MakeReport, DividesEachRanksTime) {
  const StepReport report = make_report(small_recording());
  EXPECT_EQ(report.makespan, 80);
  EXPECT_EQ(report.not_run, 0);
  EXPECT_EQ(report.actions, 8);
  ASSERT_EQ(report.ranks.size(), 2U);
  const RankReport& zero = report.ranks[0];
  EXPECT_EQ(zero.compute, 20);
  EXPECT_EQ(zero.bubble, 43);            // 12 to 55: nothing was sent yet
  EXPECT_EQ(zero.exposed_transfer, 15);  // 55 to 70
  EXPECT_EQ(zero.other, 2);              // the send
  EXPECT_EQ(zero.bubble_share, 43 / 80.0);
  EXPECT_EQ(zero.bytes_sent, 1000);
  EXPECT_EQ(zero.bytes_received, 1000);
  EXPECT_EQ(zero.peak_memory, 4096);
  const RankReport& one = report.ranks[1];
  EXPECT_EQ(one.compute, 30);
  EXPECT_EQ(one.bubble, 12 + 25);  // until 12, and from 55 on
  EXPECT_EQ(one.exposed_transfer, 8);
  EXPECT_EQ(one.other, 5);
  EXPECT_EQ(one.peak_memory, std::nullopt);
  EXPECT_EQ(report.bubble_share, 80 / 160.0);
}

TEST(MakeReport, AddsUpToTheMakespan) {
  const Schedule schedule = lower(build_schedule("DualPipeV", {.ranks = 4, .microbatches = 8}));
  CostModel costs = parse_costs("F=18,I=17,W=9,C=4");
  costs.overlap = 0.5;
  for (const Recording& recording :
       {small_recording(), failed_recording(), play(schedule, simulate(schedule, costs))}) {
    const StepReport report = make_report(recording);
    for (const RankReport& rank : report.ranks) {
      EXPECT_EQ(rank.compute + rank.bubble + rank.exposed_transfer + rank.other, report.makespan);
      EXPECT_GE(rank.other, 0);
    }
  }
}

TEST(MakeReport, TakesAWaitThatNeverEndedForBubble) {
  const StepReport report = make_report(failed_recording());
  EXPECT_EQ(report.makespan, 45);
  EXPECT_EQ(report.not_run, 1);
  EXPECT_EQ(report.ranks[0].compute, 10);
  EXPECT_EQ(report.ranks[0].bubble, 33);
  EXPECT_EQ(report.ranks[0].exposed_transfer, 0);
  EXPECT_EQ(report.ranks[1].compute, 25);
}

TEST(MakeReport, TakesATransferSentAfterAWaitForBubble) {
  Recording recording = small_recording();
  recording.ranks[0].waits[0].sent = 90000;  // clocks of two machines
  EXPECT_EQ(make_report(recording).ranks[0].exposed_transfer, 0);
  recording.ranks[0].waits[0].sent = -5000;
  EXPECT_EQ(make_report(recording).ranks[0].exposed_transfer, 58);
}

TEST(StepReport, IsATable) {
  EXPECT_EQ(to_text(make_report(small_recording())),
            "makespan 80.0 us, bubble 50.0 %\n"
            "rank  compute  bubble  exposed  other  bubble %    sent  received   memory\n"
            "   0     20.0    43.0     15.0    2.0      53.8  1000 B    1000 B  4.0 KiB\n"
            "   1     30.0    37.0      8.0    5.0      46.2     0 B       0 B        -\n");
}

TEST(StepReport, SaysWhatDidNotRunAndFitsItsUnit) {
  EXPECT_THAT(to_text(make_report(failed_recording())),
              HasSubstr(", 1 of 8 actions did not run\n"));
  StepReport report{.makespan = 12345.6, .ranks = {{.compute = 12345.6}}};
  EXPECT_THAT(to_text(report), testing::StartsWith("makespan 12.3 ms, "));
  report.makespan = 12345678;
  EXPECT_THAT(to_text(report), testing::StartsWith("makespan 12.3 s, "));
  EXPECT_THAT(to_text(report), Not(HasSubstr("did not run")));
}

}  // namespace
}  // namespace stagecraft
