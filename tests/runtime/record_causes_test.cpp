#include <chrono>
#include <cstdint>
#include <vector>

#include <gmock/gmock.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/record/recorder.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/record/stage_times.h"
#include "stagecraft/schedule/text.h"
#include "tests/runtime/step_times.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

void act(Recorder& recorder, std::size_t offset, int64_t begin, int64_t end) {
  recorder.begin(offset, at(begin));
  recorder.end(offset, at(end));
}

void act_after(Recorder& recorder, std::size_t offset, int64_t begin, int64_t sent, int64_t come,
               int64_t end) {
  recorder.begin(offset, at(begin));
  recorder.begin_wait(offset, at(begin));
  recorder.end_wait(at(sent), at(come));
  recorder.end(offset, at(end));
}

/// Two stages on two ranks, two microbatches, sends left out where they take no time.
///
///   rank 0   0F0 0-10, SEND 10-11, 0F1 11-20, SEND 20-21, 0B0 waits 21-60 (sent 50) -70,
///            0B1 waits 70-90 (sent 95 by mistake of the clocks) -100
///   rank 1   1F0 waits 0-15 (sent 11) -25, 1B0 25-50, 1F1 waits 52-60 (sent 40, so all exposed)
///            -65, 1B1 65-88
Recording recording_of_two() {
  const Schedule schedule(Level::kLowered, Placement::loop(2, 2),
                          {parse_actions("0F0,0SEND_F0,0F1,0SEND_F1,0RECV_B0,0B0,0RECV_B1,0B1"),
                           parse_actions("1RECV_F0,1F0,1B0,1SEND_B0,1RECV_F1,1F1,1B1,1SEND_B1")});
  Recorder zero;
  zero.start(8, kZero);
  zero.start_memory(1000);
  act(zero, 0, 0, 10);
  zero.set_held(0, {50, 40});
  zero.begin(1, at(10));
  zero.add_sent(300);
  zero.end(1, at(11));
  zero.set_held(1, {40, 30});
  act(zero, 2, 11, 20);
  zero.begin(3, at(20));
  zero.add_sent(500);
  zero.end(3, at(21));
  act(zero, 4, 21, 21);
  act_after(zero, 5, 21, 50, 60, 70);
  zero.set_held(5, {90, 5});
  act(zero, 6, 70, 70);
  act_after(zero, 7, 70, 95, 90, 100);
  zero.set_peak_memory(90);

  Recorder one;
  one.start(8, kZero);
  act(one, 0, 0, 0);
  act_after(one, 1, 0, 11, 15, 25);
  act(one, 2, 25, 50);
  one.begin(3, at(50));
  one.add_sent(70);
  one.end(3, at(51));
  act(one, 4, 51, 52);
  act_after(one, 5, 52, 40, 60, 65);
  act(one, 6, 65, 88);
  one.begin(7, at(88));
  one.add_sent(80);
  one.end(7, at(90));
  return {schedule, StageGraph::chain(2), {zero.view(), one.view()}};
}

// The wait for sharded weights is a kind of its own: neither bubble nor exposed transfer.
TEST(MakeReport, TellsTheWaitForWeights) {
  const Schedule schedule(Level::kLowered, Placement::loop(1, 1),
                          {parse_actions("0UNSHARD,0F0,0B0,0RESHARD")});
  Recorder recorder;
  recorder.start(4, kZero);
  act(recorder, 0, 0, 1);
  recorder.begin(1, at(1));
  recorder.begin_wait(1, RankRecording::Wait::For::kWeights, at(1));
  recorder.end_wait(at(0), at(8));
  recorder.end(1, at(10));
  act(recorder, 2, 10, 14);
  act(recorder, 3, 14, 14);
  const Recording recording{schedule, StageGraph::chain(1), {recorder.view()}};
  const StepReport report = make_report(recording);
  EXPECT_EQ(report.ranks[0].waiting_for_weights, 7);
  EXPECT_EQ(report.ranks[0].compute, 2 + 4);
  EXPECT_EQ(report.ranks[0].bubble, 0);
  EXPECT_EQ(report.ranks[0].exposed_transfer, 0);
  EXPECT_EQ(report.ranks[0].other, 1);
  EXPECT_THAT(to_text(report), testing::HasSubstr("rank 0: waited 7.0 us for sharded weights"));
  EXPECT_EQ(to_simulation(recording).exposed_gather, 7);
}

TEST(MakeReport, TellsTheBubbleByCause) {
  const StepReport report = make_report(recording_of_two());
  const RankReport& zero = report.ranks[0];
  EXPECT_EQ(zero.start_up, 0);
  EXPECT_EQ(zero.waiting_for_activations, 0);
  EXPECT_EQ(zero.waiting_for_gradients, 29 + 20);
  EXPECT_EQ(zero.run_out, 0);
  EXPECT_EQ(zero.exposed_transfer, 10);
  EXPECT_EQ(zero.exposed_gradients, 10);
  const RankReport& one = report.ranks[1];
  EXPECT_EQ(one.start_up, 11);
  EXPECT_EQ(one.waiting_for_activations, 0);
  EXPECT_EQ(one.waiting_for_gradients, 0);
  EXPECT_EQ(one.run_out, 10);
  EXPECT_EQ(one.exposed_transfer, 4 + 8);
  EXPECT_EQ(one.exposed_gradients, 0);
  for (const RankReport& rank : report.ranks) {
    EXPECT_EQ(
        rank.start_up + rank.waiting_for_activations + rank.waiting_for_gradients + rank.run_out,
        rank.bubble);
    EXPECT_EQ(rank.compute + rank.bubble + rank.exposed_transfer + rank.other, report.makespan);
  }

  Recording later = recording_of_two();
  later.ranks[1].waits[1].sent = 57'000;
  EXPECT_EQ(make_report(later).ranks[1].waiting_for_activations, 5);
}

TEST(MakeReport, ARankThatNeverComputedIsStillStartingUp) {
  Recording recording = recording_of_two();
  RankRecording& one = recording.ranks[1];
  one.actions.assign(8, {});
  one.actions[1].begin = 0;
  one.waits = {{.offset = 1, .begin = 0}};
  const RankReport report = make_report(recording).ranks[1];
  EXPECT_EQ(report.start_up, 100);
  EXPECT_EQ(report.bubble, 100);
}

TEST(ToSimulation, HasMemoryOverTime) {
  const Simulation run = to_simulation(recording_of_two());
  const std::vector<MemorySample> expected = {{0, 1000},  {0, 1050},  {10, 1040}, {10, 1040},
                                              {11, 1030}, {60, 1090}, {70, 1005}};
  EXPECT_EQ(run.memory[0], expected);
  EXPECT_TRUE(run.memory[1].empty());
  EXPECT_EQ(run.ranks[0].peak_memory, 1090);

  Recording failed = recording_of_two();
  failed.ranks[0].peak_memory.reset();
  EXPECT_EQ(to_simulation(failed).ranks[0].peak_memory, 1090);
  failed.ranks[0].held.pop_back();
  EXPECT_ERROR(to_simulation(failed), ArgumentError, "rank 0 has 8 actions, but the memory of 7");
}

TEST(Recorder, CountsWhatEachActionSends) {
  const Recording recording = recording_of_two();
  EXPECT_EQ(recording.ranks[0].actions[1].sent, 300);
  EXPECT_EQ(recording.ranks[0].actions[3].sent, 500);
  EXPECT_EQ(recording.ranks[0].bytes_sent, 800);
  Recorder again;
  again.start(1, kZero);
  again.start_memory(7);
  again.start(2, kZero);
  EXPECT_TRUE(again.view().held.empty());
  EXPECT_EQ(again.view().held_before, 0);
}

TEST(StageTimesOf, AreWithoutWaitingAndWithWhatWasSent) {
  const std::vector<StageTimes> stages = stage_times(recording_of_two());
  ASSERT_EQ(stages.size(), 2u);
  EXPECT_EQ(stages[0].forward, (std::vector<double>{10, 9}));
  EXPECT_EQ(stages[0].backward, (std::vector<double>{10, 10}));
  EXPECT_EQ(stages[1].forward, (std::vector<double>{10, 5}));
  EXPECT_EQ(stages[1].backward, (std::vector<double>{25, 23}));
  EXPECT_TRUE(stages[1].backward_input.empty());
  EXPECT_EQ(stages[0].activations_sent, 800);
  EXPECT_EQ(stages[0].gradients_sent, 0);
  EXPECT_EQ(stages[1].gradients_sent, 150);
}

}  // namespace
}  // namespace stagecraft
