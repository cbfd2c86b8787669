#include "stagecraft/sim/simulate.h"

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/add_transfers.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/sim/unit_steps.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

Simulation simulate_text(std::string_view name, int32_t ranks, int32_t microbatches,
                         const CostModel& costs = {}) {
  return simulate(build_schedule(name, {.ranks = ranks, .microbatches = microbatches}), costs);
}

std::vector<double> peaks(const Simulation& simulation) {
  std::vector<double> memory;
  for (const RankStats& rank : simulation.ranks) memory.push_back(rank.peak_memory);
  return memory;
}

// Measured times of the zero-bubble paper's models, in microseconds: F, B (input gradients), W and
// the latency of a transfer, with the time of 1F1B that its cost model gives.
TEST(Simulate, GivesTheZeroBubblePapersTimesOf1F1B) {
  const auto span = [](int32_t p, int32_t m, std::string_view costs) {
    return simulate_text("1F1B", p, m, parse_costs(costs)).span;
  };
  EXPECT_EQ(span(8, 24, "F=18522,B=18086,W=9337,C=601"), 1456749);
  EXPECT_EQ(span(16, 64, "F=11307,B=11254,W=8101,C=379"), 2478390);
  EXPECT_EQ(span(32, 256, "F=10402,B=10248,W=7698,C=460"), 8391636);
}

TEST(Simulate, BubbleOf1F1BIsThatOfTheFormula) {
  for (int32_t p = 1; p <= 32; ++p) {
    for (int32_t m = 1; m <= 32; ++m) {
      const Simulation simulation = simulate_text("1F1B", p, m);
      const double expected = static_cast<double>(p - 1) / (m + p - 1);
      EXPECT_NEAR(simulation.bubble, expected, 1e-12) << "p = " << p << ", m = " << m;
      for (const RankStats& rank : simulation.ranks) EXPECT_NEAR(rank.bubble, expected, 1e-12);
    }
  }
}

// [1] Two ranks, two microbatches, F = 1, B = 2, latency 1/2:
//
//   time    0    1    2    3    4    5    6    7    8    9
//   rank 0  0F0  0F1       .  0B0 0B0       . 0B1 0B1
//   rank 1     . 1F0  1B0  1B0  1F1  1B1 1B1
TEST(Simulate, RunsTwoRanksAsDrawn) {
  const Simulation simulation = simulate_text("1F1B", 2, 2, parse_costs("F=1,B=1,W=1,C=0.5"));
  EXPECT_THAT(simulation.timeline[0],
              ElementsAre(Interval{0, 1}, Interval{1, 2}, Interval{5, 7}, Interval{8, 10}));
  EXPECT_THAT(simulation.timeline[1], ElementsAre(Interval{1.5, 2.5}, Interval{2.5, 4.5},
                                                  Interval{4.5, 5.5}, Interval{5.5, 7.5}));
  EXPECT_EQ(simulation.makespan, 10);
  EXPECT_EQ(simulation.span, 10);
  EXPECT_EQ(simulation.ranks[1].first_start, 1.5);
  EXPECT_EQ(simulation.ranks[1].busy, 6);
  EXPECT_EQ(simulation.ranks[0].bubble, 0.4);
  // Rank 0 waits 0.5 of each gap for a transfer, rank 1 at the start.
  EXPECT_EQ(simulation.ranks[0].exposed_transfer, 1);
  EXPECT_EQ(simulation.ranks[1].exposed_transfer, 0.5);
  EXPECT_EQ(simulation.exposed_transfer, 1.5);
  EXPECT_EQ(simulation.transfers, 4);
  EXPECT_EQ(simulation.ranks[0].transfers_sent, 2);
}

TEST(Simulate, FollowsTheCriticalPath) {
  const Schedule schedule = build_schedule("1F1B", {.ranks = 2, .microbatches = 2});
  const Simulation simulation = simulate(schedule, parse_costs("F=1,B=1,W=1,C=0.5"));
  std::string path;
  for (const PathStep& step : simulation.critical_path) {
    constexpr std::string_view kCauses = "srvt";
    path += kCauses[static_cast<std::size_t>(step.cause)];
    path += to_string(schedule.actions(step.rank)[step.offset]) + " ";
  }
  EXPECT_EQ(path, "s0F0 t1F0 v1B0 r1F1 v1B1 t0B1 ");
}

// Every step of the path starts when the one before ended, or when its value arrived.
TEST(Simulate, CriticalPathHasNoGaps) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule compute = build_schedule(kind.name, {.ranks = 4, .microbatches = 9});
    for (const Schedule& schedule : {compute, lower(compute)}) {
      const Simulation simulation = simulate(schedule, parse_costs("F=3,B=4,W=2,C=1,OVERLAP=0.3"));
      ASSERT_FALSE(simulation.critical_path.empty());
      double time = 0;
      for (const PathStep& step : simulation.critical_path) {
        const Interval& when = simulation.timeline[step.rank.value()][step.offset];
        if (step.cause == PathStep::Cause::kTransfer) time += 1;
        const Slot slot = slot_at(schedule.actions(step.rank), step.offset);
        const Interval& whole = simulation.timeline[step.rank.value()][slot.offset()];
        EXPECT_NEAR(whole.start, time, 1e-9) << kind.name;
        // A lowered schedule sends after the whole overlap.
        time = schedule.level() == Level::kLowered ? whole.end : when.end;
      }
      EXPECT_EQ(time, simulation.makespan) << kind.name;
    }
  }
}

TEST(Simulate, CountsLiveActivations) {
  const auto live = [](std::string_view name) { return peaks(simulate_text(name, 4, 8)); };
  EXPECT_THAT(live("GPipe"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(live("1F1B"), ElementsAre(4, 3, 2, 1));
  EXPECT_THAT(live("LoopedBFS"), ElementsAre(16, 16, 16, 16));
  EXPECT_THAT(live("Interleaved1F1B"), ElementsAre(11, 9, 7, 5));
  EXPECT_THAT(live("InterleavedZeroBubble"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(live("ZBVZeroBubble"), ElementsAre(8, 8, 8, 8));
  EXPECT_THAT(live("DualPipeV"), ElementsAre(9, 9, 9, 9));
}

// The table of docs/schedules.md.
TEST(Simulate, BubbleAndMemoryAreThoseOfTheDocumentation) {
  for (int32_t p = 1; p <= 8; ++p) {
    for (const int32_t m : {2 * p, 4 * p, 8 * p}) {
      const auto expect = [&](std::string_view name, int32_t l, double bubble, double memory) {
        const Simulation simulation = simulate(build_schedule(name, {p, m, l}));
        EXPECT_NEAR(simulation.bubble, bubble, 1e-12) << name << ", p = " << p << ", m = " << m;
        EXPECT_EQ(simulation.peak_memory, memory) << name << ", p = " << p << ", m = " << m;
      };
      const double stagger = p - 1;
      expect("GPipe", 1, stagger / (m + stagger), m);
      expect("1F1B", 1, stagger / (m + stagger), p);
      expect("ZBVZeroBubble", 2, stagger / (6 * m + stagger), 2 * p);
      expect("DualPipeV", 2, 2 * stagger / (6 * m + 2 * stagger), 2 * p + 1);
      for (int32_t l = 1; l <= 4; ++l) {
        expect("LoopedBFS", l, stagger / (l * m + stagger), l * m);
        expect("Interleaved1F1B", l, stagger / (l * m + stagger), (l - 1) * p + 2 * (p - 1) + 1);
        expect("InterleavedZeroBubble", l, stagger / (3 * l * m + stagger), l * p);
      }
    }
  }
}

// The bubble that is quoted from the paper is (2P - 2) / (3PW + P - 1) for W waves, P ranks and P
// microbatches, with T_B = 2 T_F and free transfers. T_F is a rank's forward of one microbatch: 2W
// stages.
TEST(Simulate, IdleTimeOfHanayoIsTheNumeratorOfThePaper) {
  for (int32_t p = 1; p <= 12; ++p) {
    for (int32_t waves = 1; waves <= 4; ++waves) {
      SCOPED_TRACE("p = " + std::to_string(p) + ", waves = " + std::to_string(waves));
      const int32_t work = 3 * p * waves;  // in units of T_F / W, for each rank
      const int32_t idle = 2 * p - 2;      // likewise: the paper's numerator
      const Simulation simulation = simulate(build_schedule("Hanayo", {p, p, 2 * waves}));
      EXPECT_EQ(simulation.makespan, 2 * (work + idle));
      // The share of the makespan. The paper's denominator counts half of the idle time, so it is
      // exact for P = 1 only: above the share of the makespan, below the ratio to the work.
      const double paper = static_cast<double>(idle) / (work + p - 1);
      EXPECT_NEAR(simulation.bubble, static_cast<double>(idle) / (work + idle), 1e-12);
      EXPECT_LE(simulation.bubble, paper);
      EXPECT_GE(static_cast<double>(idle) / work, paper);
      EXPECT_EQ(simulation.peak_memory, 2 * waves * p);
    }
  }
}

TEST(Simulate, HanayoTakesAnyNumberOfMicrobatches) {
  for (int32_t p = 1; p <= 6; ++p) {
    for (const int32_t l : {2, 4, 6, 8}) {
      for (int32_t m = 1; m <= 6 * p; ++m) {
        SCOPED_TRACE("p = " + std::to_string(p) + ", l = " + std::to_string(l) +
                     ", m = " + std::to_string(m));
        const Simulation simulation = simulate(build_schedule("Hanayo", {p, m, l}));
        if (m <= p) {
          EXPECT_EQ(simulation.makespan, 3 * l * p + 4 * (m - 1));
        }
        // Idle time does not grow with the microbatches: about that of 1F1B at most. Memory stays
        // below that of 2p microbatches.
        EXPECT_LE(simulation.makespan - 3 * l * m, 3 * l * (p - 1) + 2 * p);
        EXPECT_LE(simulation.peak_memory, 2 * l * p);
      }
    }
  }
}

TEST(Simulate, KeepsBooksOfMemory) {
  const Schedule schedule = parse_csv("0F0,0F1,0I0,0W0,0I1,0W1\n");
  const Simulation simulation =
      simulate(schedule, parse_costs("MF=10,MI=6,MW=4,WEIGHTS=100,CAP=115"));
  using M = MemorySample;
  EXPECT_THAT(simulation.memory[0],
              ElementsAre(M{0, 110}, M{1, 120}, M{3, 114}, M{4, 110}, M{5, 104}, M{6, 100}));
  EXPECT_EQ(simulation.peak_memory, 120);
  ASSERT_EQ(simulation.over_cap.size(), 1U);
  EXPECT_EQ(simulation.over_cap[0].offset, 1U);
  EXPECT_EQ(simulation.over_cap[0].time, 1);
  EXPECT_EQ(simulation.over_cap[0].memory, 120);
}

TEST(Simulate, SendsOneTransferAtATimeOverALink) {
  // Stage 0 makes a value a unit of time; each takes 3 to send and arrives 1 later.
  const Schedule schedule = parse_csv("0F0,0F1\n1F0,1F1\n");
  const Simulation simulation = simulate(schedule, parse_costs("BYTES=6,BW=2,C=1"));
  EXPECT_THAT(simulation.timeline[1], ElementsAre(Interval{5, 6}, Interval{8, 9}));
  CostModel slow = parse_costs("BYTES=6,C=1");
  slow.links.push_back({Rank(0), Rank(1), {.latency = 7}});
  EXPECT_THAT(simulate(schedule, slow).timeline[1], ElementsAre(Interval{8, 9}, Interval{9, 10}));
}

TEST(Simulate, TakesCostsOfStagesAndMicrobatches) {
  CostModel costs;
  costs.stages = {{.forward = 5}};
  costs.microbatches.push_back({StageId(1), MicrobatchId(1), {.forward = 10}});
  const Simulation simulation = simulate(parse_csv("0F0,0F1\n1F0,1F1\n"), costs);
  EXPECT_THAT(simulation.timeline[0], ElementsAre(Interval{0, 5}, Interval{5, 10}));
  EXPECT_THAT(simulation.timeline[1], ElementsAre(Interval{5, 6}, Interval{10, 20}));
}

TEST(Simulate, FullBackwardIsBothUnlessGiven) {
  EXPECT_EQ(simulate_text("GPipe", 1, 1, parse_costs("F=1,I=2,W=3")).makespan, 6);
  EXPECT_EQ(simulate_text("GPipe", 1, 1, parse_costs("F=1,I=2,W=3,FULL=4")).makespan, 5);
}

TEST(Simulate, OverlapsPartsAsMuchAsAsked) {
  const Schedule schedule = parse_csv("0F0,1F0,0F1,(1F1;1B0)OVERLAP_F_B,0B0,1B1,0B1\n");
  EXPECT_EQ(simulate(schedule).makespan, 12);
  const Simulation half = simulate(schedule, parse_costs("OVERLAP=0.5"));
  EXPECT_EQ(half.makespan, 11.5);
  EXPECT_EQ(half.timeline[0][3], (Interval{3, 5.5}));  // the overlap
  EXPECT_EQ(half.timeline[0][4], (Interval{3, 4}));    // 1F1
  EXPECT_EQ(half.timeline[0][5], (Interval{3.5, 5.5}));
  EXPECT_EQ(simulate(schedule, parse_costs("OVERLAP=1")).makespan, 11);
}

// A lowered schedule takes the time of its compute schedule: transfers leave when the value is
// there.
TEST(Simulate, LoweringCostsNoTime) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = build_schedule(kind.name, {.ranks = 4, .microbatches = 11});
    const CostModel costs = parse_costs("F=18,B=17,W=9,C=2");
    const Simulation plain = simulate(schedule, costs);
    for (const std::optional<int32_t> prefetch : {std::optional<int32_t>(), {0}, {2}}) {
      const Simulation lowered = simulate(lower(schedule, {.prefetch = prefetch}), costs);
      EXPECT_EQ(lowered.makespan, plain.makespan) << kind.name;
      EXPECT_EQ(lowered.bubble, plain.bubble) << kind.name;
      EXPECT_EQ(lowered.transfers, plain.transfers) << kind.name;
      EXPECT_EQ(lowered.peak_memory, plain.peak_memory) << kind.name;
    }
  }
}

// With a rendezvous a transfer waits for its receive, so that early receives pay.
TEST(Simulate, PrefetchHidesLatencyOfARendezvous) {
  const Schedule schedule = build_schedule("1F1B", {.ranks = 4, .microbatches = 16});
  CostModel costs = parse_costs("F=10,B=10,W=10,C=5");
  costs.rendezvous = true;
  const double late = simulate(lower(schedule, {.prefetch = 0}), costs).makespan;
  const double early = simulate(lower(schedule, {.prefetch = 4}), costs).makespan;
  EXPECT_GT(late, early);
  costs.rendezvous = false;
  EXPECT_GE(early, simulate(schedule, costs).makespan);
}

// A link sends in the order in which values are ready, not in that of the parts: here the backward
// of the overlap is done before its forward.
TEST(Simulate, LinksSendWhatIsReadyFirst) {
  const Schedule schedule = parse_csv(
      "0F0,3F0,0F1,(0F2;3B0)OVERLAP_F_B,0B0,3F1,3F2,3B1,0B1,3B2,0B2\n"
      "1F0,2F0,1F1,2F1,2B0,1B0,1F2,2F2,2B1,1B1,2B2,1B2\n");
  const CostModel latency = parse_costs("F=100,FULL=1,C=1,OVERLAP=1");
  const CostModel bandwidth = parse_costs("F=100,FULL=1,BW=1,BYTES=1,OVERLAP=1");
  EXPECT_EQ(simulate(schedule, latency).timeline[1][4],
            simulate(schedule, bandwidth).timeline[1][4]);
}

TEST(Simulate, WeightsAloneMayBeOverTheCap) {
  const Schedule schedule(Level::kCompute, Placement::loop(2, 2),
                          {parse_csv("0F0\n").lists()[0], {}});
  const Simulation simulation = simulate(schedule, parse_costs("WEIGHTS=10,CAP=5"));
  ASSERT_EQ(simulation.over_cap.size(), 2U);
  EXPECT_EQ(simulation.over_cap[1].rank, Rank(1));
  EXPECT_EQ(simulation.over_cap[1].offset, std::nullopt);
}

TEST(Simulate, RefusesCostsThatAddUpToNoNumber) {
  EXPECT_ERROR(simulate_text("GPipe", 2, 4, parse_costs("F=1e308")), ArgumentError,
               "the costs add up to more than a number can hold: makespan inf");
}

TEST(Simulate, FollowsSkipEdges) {
  const Schedule schedule = parse_csv("0F0\n1F0\n2F0\n");
  CostModel costs;
  costs.links.push_back({Rank(0), Rank(2), {.latency = 100}});
  const StageGraph skip = StageGraph::chain(3).with_edges(parse_edges("0-2"));
  EXPECT_EQ(simulate(schedule, costs).makespan, 3);
  EXPECT_EQ(simulate(schedule, costs, skip).makespan, 102);
  EXPECT_EQ(simulate(schedule, costs, skip).transfers, 3);
}

// Rank 0 stands still from 11 to 21, until its first output has left.
TEST(Simulate, AWaitEndsWhenTheValueHasLeft) {
  const std::string rest = "\n1RECV_F0,1F0,1RECV_F1,1F1\n";
  const CostModel costs = parse_costs("F=10,BW=1,BYTES=11,C=3,MF=0,MS=5");
  const Simulation free = simulate(parse_csv("0F0,0SEND_F0,0F1,0SEND_F1" + rest), costs);
  EXPECT_EQ(free.timeline[0][2], (Interval{10, 20}));
  EXPECT_THAT(free.memory[0],
              ElementsAre(MemorySample{0, 0}, MemorySample{10, 5}, MemorySample{20, 10},
                          MemorySample{21, 5}, MemorySample{32, 0}));
  const Simulation waits =
      simulate(parse_csv("0F0,0SEND_F0,0WAIT_SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F1" + rest), costs);
  EXPECT_EQ(waits.timeline[0][2], (Interval{10, 21}));
  EXPECT_EQ(waits.timeline[0][3], (Interval{21, 31}));
  EXPECT_EQ(waits.ranks[0].exposed_transfer, 11 + 11);
  EXPECT_EQ(waits.ranks[0].peak_memory, 5);
  EXPECT_THAT(waits.memory[0],
              ElementsAre(MemorySample{0, 0}, MemorySample{10, 5}, MemorySample{21, 0},
                          MemorySample{31, 5}, MemorySample{42, 0}));
  // 0F0, whose output was waited for; 0F1; 1F1.
  ASSERT_EQ(waits.critical_path.size(), 3U);
  EXPECT_EQ(waits.critical_path[1].cause, PathStep::Cause::kTransfer);
  // A late wait costs no time but holds the memory.
  const Simulation late =
      simulate(parse_csv("0F0,0SEND_F0,0F1,0SEND_F1,0WAIT_SEND_F0,0WAIT_SEND_F1" + rest), costs);
  EXPECT_EQ(late.makespan, free.makespan);
  EXPECT_EQ(late.ranks[0].peak_memory, 10);
}

TEST(Simulate, RefusesWhatCannotRun) {
  EXPECT_ERROR(simulate(parse_csv("0B0,0F0\n")), ScheduleError, "simulate: rank 0, slot 0, 0B0");
  EXPECT_ERROR(simulate(parse_csv("0F0,0F0\n")), ScheduleError, "comes a second time");
  EXPECT_ERROR(simulate(parse_csv("0F0\n0B0\n")), ScheduleError, "stage 0 is on rank 0");
  EXPECT_ERROR(simulate(parse_csv("0F0\n"), {}, StageGraph::chain(2)), ArgumentError, "2 stages");
  EXPECT_ERROR(simulate(parse_csv("0F0\n"), parse_costs("F=-1")), ArgumentError,
               "costs: F must be a number of at least 0, got -1");
  CostModel costs;
  costs.stages.resize(2);
  EXPECT_ERROR(simulate(parse_csv("0F0\n"), costs), ArgumentError, "2 entries for 1 stages");
  EXPECT_EQ(simulate(parse_csv("0F0,0B0\n"), parse_costs("F=0,B=0,W=0")).bubble, 0);
}

// In the fifth step rank 0 sees what rank 1 has sent in the same step.
TEST(UnitSteps, WaitsAndGivesASecondChance) {
  const Schedule lowered = lower(build_schedule("GPipe", {.ranks = 2, .microbatches = 1}),
                                 {.shard = false, .reduce_grads = false});
  const UnitSteps steps = simulate_unit_steps(lowered);
  using D = UnitSteps::Done;
  EXPECT_THAT(steps.ranks[0], ElementsAre(D{0, 0}, D{1, 1}, D{2, 4}, D{3, 5}));
  EXPECT_THAT(steps.ranks[1], ElementsAre(D{0, 1}, D{1, 2}, D{2, 3}, D{3, 4}));
  EXPECT_EQ(steps.steps, 6);
}

TEST(UnitSteps, RunSkipEdges) {
  for (const ScheduleKind& kind : schedule_kinds()) {
    const Schedule schedule = build_schedule(kind.name, {.ranks = 4, .microbatches = 9});
    const StageGraph skips =
        StageGraph::chain(schedule.num_stages()).with_edges(parse_edges("0-2,0-3,1-3"));
    const UnitSteps steps = simulate_unit_steps(lower(schedule, skips), skips);
    EXPECT_GE(steps.steps, simulate_unit_steps(schedule).steps) << kind.name;
  }
}

TEST(UnitSteps, TakesListsWithBBesideWWhereTheCallerSaysSo) {
  // As torch's simulator: a W needs nothing, and 1B0 does not make 1W0 a repetition.
  const Schedule schedule = parse_csv("0F0,0I0,0W0\n1F0,1B0,1W0\n");
  const StageGraph chain = StageGraph::chain(2);
  EXPECT_ERROR(simulate_unit_steps(schedule), ScheduleError, "1B0 includes it already");
  const VerifyOptions lenient = {.mode = VerifyMode::kPartial, .mixed_backward = true};
  EXPECT_TRUE(verify(schedule, chain, lenient).ok());
  EXPECT_FALSE(verify(schedule, chain, {.mixed_backward = true}).ok());
  const Schedule lowered = add_transfers(schedule, chain, Verified::kYes);
  EXPECT_EQ(to_csv(lowered), "0F0,0SEND_F0,0RECV_B0,0I0,0W0\n1RECV_F0,1F0,1B0,1SEND_B0,1W0\n");
  EXPECT_EQ(simulate_unit_steps(lowered, chain, Verified::kYes).steps, 7);
}

TEST(UnitSteps, RefusesWhatCannotRun) {
  EXPECT_ERROR(simulate_unit_steps(parse_csv("0F0,0B0,0F1,0B1\n1F1,1F0,1B0,1B1\n")), ScheduleError,
               "ranks wait for each other");
}

}  // namespace
}  // namespace stagecraft
