#include "stagecraft/viz/bars.h"

#include <gtest/gtest.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/text.h"
#include "tests/support/expect_error.h"
#include "tests/viz/support.h"

namespace stagecraft::viz {
namespace {

TEST(LayOut, HasABarForEachComputeActionAndNoneForIdleSlots) {
  const Schedule schedule(Level::kCompute, Placement::loop(2, 2),
                          {parse_actions("0F0,,,0B0"), parse_actions(",1F0,1B0")});
  const auto lanes = lay_out(schedule, simulate(schedule));
  ASSERT_EQ(lanes.size(), 2U);
  ASSERT_EQ(lanes[0].bars.size(), 2U);
  EXPECT_EQ(lanes[0].bars[1].action, parse_action("0B0"));
  EXPECT_EQ(lanes[0].bars[1].start, 4);
  EXPECT_EQ(lanes[0].bars[1].end, 6);
  EXPECT_TRUE(lanes[0].marks.empty());
}

TEST(LayOut, PutsThePartsOfAnOverlapIntoItsTime) {
  const Schedule schedule(Level::kCompute, Placement::loop(1, 1),
                          {parse_actions("0F0,(0F1;0B0)OVERLAP_F_B,0B1")});
  const auto lanes = lay_out(schedule, simulate(schedule));
  ASSERT_EQ(lanes[0].bars.size(), 4U);
  const Bar& second = lanes[0].bars[2];
  EXPECT_EQ(second.action, parse_action("0B0"));
  EXPECT_EQ(second.part, 1);
  EXPECT_EQ(second.parts, 2);
  EXPECT_EQ(second.start, 1);
  EXPECT_EQ(second.end, 4);
  EXPECT_EQ(second.run, (Interval{2, 4}));
}

TEST(LayOut, CountsTheStagesOfARank) {
  const Case made = make_case("Interleaved1F1B", 2, 2);
  const auto lanes = lay_out(made.schedule, made.simulation);
  EXPECT_EQ(most_chunks(lanes), 2);
  for (const Bar& bar : lanes[1].bars) EXPECT_EQ(bar.chunk, bar.action.stage().value() / 2);
}

TEST(LayOut, RefusesASimulationOfAnotherSchedule) {
  const Case two = make_case("1F1B", 2, 2);
  const Case three = make_case("1F1B", 3, 2);
  const Case longer = make_case("1F1B", 2, 3);
  EXPECT_ERROR(lay_out(two.schedule, three.simulation), ArgumentError,
               "has 3 ranks, but the schedule has 2");
  EXPECT_ERROR(lay_out(two.schedule, longer.simulation), ArgumentError, "rank 0 has 6 actions");
}

TEST(LayOut, SaysWhetherThePlanOrTheSimulationIsWrong) {
  const Case two = make_case("1F1B", 2, 2);
  const Case three = make_case("1F1B", 3, 2);
  EXPECT_ERROR(lay_out(two.schedule, three.simulation), ArgumentError, "the simulation is of");
  EXPECT_ERROR(lay_out(two.schedule, three.simulation, "plan"), ArgumentError, "the plan is of");
}

TEST(LayOut, LeavesOutWhatDidNotRun) {
  const Case made = make_case("1F1B", 2, 2);  // rank 0: F0 F1 . . B0 B0 . B1 B1
  const auto lanes = lay_out(made.schedule, failed_run(made.simulation, 5));
  ASSERT_EQ(lanes[0].bars.size(), 3U);
  EXPECT_EQ(lanes[0].bars[2].action, parse_action("0B0"));
  EXPECT_EQ(lanes[0].bars[2].run, (Interval{4, 6}));
}

TEST(LayOut, LeavesOutPartsThatDidNotRun) {
  const Schedule schedule(Level::kCompute, Placement::loop(1, 1),
                          {parse_actions("0F0,(0F1;0B0)OVERLAP_F_B,0B1")});
  Simulation run = simulate(schedule);
  run.timeline[0][1] = run.timeline[0][2];  // the overlap ended with its first part
  const auto lanes = lay_out(schedule, failed_run(run, 2));
  ASSERT_EQ(lanes[0].bars.size(), 2U);
  EXPECT_EQ(lanes[0].bars[1].action, parse_action("0F1"));
  EXPECT_EQ(lanes[0].bars[1].parts, 1);
}

TEST(UsedTypes, AreInTheOrderOfLegends) {
  const Case made = make_case("ZBVZeroBubble", 2, 4);
  const auto types = used_types(lay_out(made.schedule, made.simulation));
  EXPECT_EQ(types, (std::vector{ActionType::kForward, ActionType::kBackwardInput,
                                ActionType::kBackwardWeight}));
}

TEST(FindStep, IsTheLargestThatAllTimesAreMultiplesOf) {
  CostModel costs;
  costs.stage.forward = 4;
  costs.stage.backward = 6;
  const Case made = make_case("1F1B", 2, 3, costs);
  const auto lanes = lay_out(made.schedule, made.simulation);
  EXPECT_EQ(find_step(lanes, made.simulation.makespan, 1000), 2);
  EXPECT_EQ(find_step(lanes, made.simulation.makespan, 3), std::nullopt);
}

TEST(FindStep, TakesNoRoundingForAStep) {
  CostModel costs;
  costs.stage.forward = 0.1;
  costs.stage.backward = 0.3;
  const Case made = make_case("1F1B", 4, 8, costs);
  const auto step =
      find_step(lay_out(made.schedule, made.simulation), made.simulation.makespan, 100);
  ASSERT_TRUE(step.has_value());
  EXPECT_NEAR(*step, 0.1, 1e-9);
}

TEST(FindStep, IsNothingForTimesWithoutOne) {
  CostModel costs;
  costs.stage.forward = 18522;
  costs.stage.backward = 27423;
  const Case made = make_case("1F1B", 4, 8, costs);
  EXPECT_EQ(find_step(lay_out(made.schedule, made.simulation), made.simulation.makespan, 100),
            std::nullopt);
}

TEST(SampleColumns, DividesTimeAmongTypes) {
  const Case made = make_case("1F1B", 1, 2);  // F B B F B B
  const auto lanes = lay_out(made.schedule, made.simulation);
  const auto columns = sample_columns(lanes[0], 6, 2);
  ASSERT_EQ(columns.size(), 2U);
  for (const Column& column : columns) {
    EXPECT_NEAR(column.share[0], 1 / 3.0, 1e-9);
    EXPECT_NEAR(column.share[3], 2 / 3.0, 1e-9);
    EXPECT_NEAR(column.busy(), 1, 1e-9);
    EXPECT_EQ(column.most(), 3U);
  }
  EXPECT_EQ(columns[1].first[0]->action, parse_action("0F1"));
}

TEST(SampleColumns, KnowsIdleTime) {
  const Case made = make_case("1F1B", 2, 1);  // rank 1: . F B B . .
  const auto columns = sample_columns(lay_out(made.schedule, made.simulation)[1], 6, 6);
  EXPECT_EQ(columns[0].busy(), 0);
  EXPECT_EQ(columns[1].busy(), 1);
  EXPECT_EQ(columns[3].busy(), 1);
  EXPECT_EQ(columns[4].busy(), 0);
}

}  // namespace
}  // namespace stagecraft::viz
