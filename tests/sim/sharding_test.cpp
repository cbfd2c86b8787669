// Sharded weights in simulations: gathers as costs.

#include <gmock/gmock.h>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/sim/unshard_lookahead.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using testing::ElementsAre;

// One rank, two stages, F = 1, B = 2, gathers of 3: the gathers run one after the other, the second
// one beside 0F0.
TEST(SimulateSharding, ComputeWaitsForItsWeights) {
  const Schedule schedule = parse_csv("0UNSHARD,1UNSHARD,0F0,1F0,1B0,1RESHARD,0B0,0RESHARD\n");
  CostModel costs = parse_costs("F=1,B=1,W=1,MF=0,MW=0,WEIGHTS=1,G=3,MG=10");
  const Simulation run = simulate(schedule, costs);
  EXPECT_EQ(run.timeline[0][2], (Interval{3, 4}));
  EXPECT_EQ(run.timeline[0][3], (Interval{6, 7}));
  EXPECT_EQ(run.makespan, 11);
  EXPECT_EQ(run.exposed_gather, 3 + 2);
  EXPECT_EQ(run.exposed_transfer, 0);
  EXPECT_EQ(run.peak_memory, 2 + 20);
  ASSERT_FALSE(run.critical_path.empty());
  // Without gathers nothing waits.
  costs.gather.clear();
  EXPECT_EQ(simulate(schedule, costs).makespan, 6);
}

TEST(SimulateSharding, FewerActiveStagesTakeLessMemoryAndMoreTime) {
  const Schedule schedule =
      build_schedule("Interleaved1F1B", {.ranks = 2, .microbatches = 8, .stages_per_rank = 4});
  const CostModel costs = parse_costs("F=1,B=1,W=1,MF=0,MW=0,G=2,MG=10");
  double time = 0;
  double memory = 1e9;
  for (const int32_t active : {4, 2, 1}) {
    const Simulation run = simulate(shard_stages(schedule, active), costs);
    EXPECT_GE(run.makespan, time) << active;
    EXPECT_LE(run.peak_memory, memory) << active;
    EXPECT_EQ(run.peak_memory, 10 * active);
    time = run.makespan;
    memory = run.peak_memory;
  }
  EXPECT_GT(time, simulate(schedule, costs).makespan);
}

// The lookahead that is found costs no time, and none is smaller.
TEST(SimulateSharding, FindsTheSmallestLookaheadThatCostsNoTime) {
  for (const char* name : {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}) {
    for (const double gather : {0.0, 0.5, 2.0, 5.0}) {
      const Schedule schedule =
          build_schedule(name, {.ranks = 2, .microbatches = 8, .stages_per_rank = 3});
      CostModel costs = parse_costs("F=1,B=1,W=1");
      costs.gather = {gather};
      const StageGraph graph = StageGraph::chain(schedule.num_stages());
      const std::vector<int32_t> found = find_unshard_lookahead(schedule, costs, graph, 3);
      const auto makespan = [&](const std::vector<int32_t>& lookahead) {
        return simulate(shard_stages(schedule, 3, lookahead), costs).makespan;
      };
      EXPECT_NEAR(makespan(found), makespan({3, 3}), 1e-6) << name << " " << gather;
      for (std::size_t r = 0; r < found.size(); ++r) {
        if (found[r] == 1) continue;
        std::vector<int32_t> smaller = found;
        --smaller[r];
        EXPECT_GT(makespan(smaller), makespan(found)) << name << " " << gather;
      }
      if (gather == 0) {
        EXPECT_THAT(found, ElementsAre(1, 1));
      }
    }
  }
}

// By hand, F = 4, B = 8, two stages of one rank: with one stage ahead, 1F0 waits for its whole
// gather. With two, the gather runs beside 0F0, and takes longer than that only if it is above 4.
TEST(SimulateSharding, FindsALookaheadThatIsKnownByHand) {
  const Schedule schedule = parse_csv("0F0,1F0,1B0,0B0\n");
  const StageGraph graph = StageGraph::chain(2);
  const auto found = [&](double gather) {
    CostModel costs = parse_costs("F=4,B=4,W=4");
    costs.gather = {gather};
    return find_unshard_lookahead(schedule, costs, graph, 2);
  };
  EXPECT_THAT(found(0), ElementsAre(1));
  EXPECT_THAT(found(3), ElementsAre(2));
  EXPECT_THAT(found(30), ElementsAre(2));
  EXPECT_ERROR(find_unshard_lookahead(schedule, {}, graph, 0), ArgumentError,
               "at least 1 active stage");
}

// No lookahead that is nowhere larger is as fast: all of them are tried.
TEST(SimulateSharding, NoSmallerLookaheadIsAsFast) {
  constexpr int32_t kMost = 4;
  for (const char* name : {"Interleaved1F1B", "LoopedBFS", "InterleavedZeroBubble"}) {
    for (const double gather : {0.3, 1.0, 2.5, 7.0}) {
      const Schedule schedule =
          build_schedule(name, {.ranks = 3, .microbatches = 6, .stages_per_rank = 4});
      CostModel costs = parse_costs("F=1,B=1.5,W=0.5");
      for (int32_t s = 0; s < schedule.num_stages(); ++s) {
        costs.gather.push_back(gather * (1 + 0.1 * (s % 3)));
      }
      const StageGraph graph = StageGraph::chain(schedule.num_stages());
      const auto makespan = [&](const std::vector<int32_t>& lookahead) {
        return simulate(shard_stages(schedule, kMost, lookahead), costs).makespan;
      };
      const std::vector<int32_t> found = find_unshard_lookahead(schedule, costs, graph, kMost);
      const double best = makespan({kMost, kMost, kMost});
      EXPECT_NEAR(makespan(found), best, 1e-6) << name << " " << gather;
      std::vector<int32_t> other(3);
      for (other[0] = 1; other[0] <= found[0]; ++other[0]) {
        for (other[1] = 1; other[1] <= found[1]; ++other[1]) {
          for (other[2] = 1; other[2] <= found[2]; ++other[2]) {
            if (other == found) continue;
            EXPECT_GT(makespan(other), best + 1e-6)
                << name << " " << gather << ": " << testing::PrintToString(other) << " beside "
                << testing::PrintToString(found);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
