#include "stagecraft/plan/correct_layers.h"

#include <gtest/gtest.h>

namespace stagecraft {
namespace {

PlanLayer layer(double f, double i, double w, double held, double later) {
  PlanLayer one;
  one.cost.forward = f;
  one.cost.backward_input = i;
  one.cost.backward_weight = w;
  one.cost.memory_forward = held;
  one.cost.memory_freed_by_weight = later;
  one.cost.memory_freed_by_input = held - later;
  one.peak_forward = 2;
  one.peak_input = 3;
  one.peak_weight = 5;
  return one;
}

PlanProblem four_layers(bool input_gradient) {
  PlanProblem problem;
  problem.layers = {layer(1, 2, 3, 10, 4), layer(2, 2, 2, 20, 8), layer(3, 1, 1, 30, 9),
                    layer(4, 5, 6, 5, 0)};
  problem.ranks = same_ranks(2);
  problem.microbatches = 4;
  problem.input_gradient = input_gradient;
  return problem;
}

PlanChoice two_stages(bool recompute = false) {
  return {.stages_per_rank = 1, .begins = {0, 2}, .recompute = {recompute, false}};
}

MeasuredStage split_stage(double f, double i, double w) {
  MeasuredStage stage;
  stage.forward = f;
  stage.backward_input = i;
  stage.backward_weight = w;
  stage.memory_forward = 50;
  stage.memory_input = 21;
  stage.peak_forward = 7;
  stage.peak_input = 11;
  stage.peak_weight = 13;
  return stage;
}

TEST(CorrectLayers, ComposedStagesHaveTheMeasuredCosts) {
  PlanProblem problem = four_layers(true);
  const std::vector<MeasuredStage> measured = {split_stage(6, 5, 4), split_stage(9, 8, 10)};
  problem.layers = correct_layers(problem, two_stages(), measured);
  const ScheduleProblem composed = StageComposer(problem).compose(two_stages());
  for (std::size_t s = 0; s < 2; ++s) {
    const StageLoad& load = composed.stages[s];
    EXPECT_DOUBLE_EQ(load.forward, *measured[s].forward);
    EXPECT_DOUBLE_EQ(load.backward_input, *measured[s].backward_input);
    EXPECT_DOUBLE_EQ(load.backward_weight, *measured[s].backward_weight);
    EXPECT_DOUBLE_EQ(load.memory_forward, 50);
    EXPECT_DOUBLE_EQ(load.memory_input, 21);
    EXPECT_DOUBLE_EQ(load.peak_forward, 7);
    EXPECT_DOUBLE_EQ(load.peak_input, 11);
    EXPECT_DOUBLE_EQ(load.peak_weight, 13);
  }
  // Inside a stage, layers keep their proportions.
  EXPECT_DOUBLE_EQ(problem.layers[1].cost.forward, 2 * problem.layers[0].cost.forward);
}

TEST(CorrectLayers, TheFirstStageHasItsBackwardInW) {
  PlanProblem problem = four_layers(false);
  const std::vector<MeasuredStage> measured = {split_stage(6, 0.5, 17.5), split_stage(9, 8, 10)};
  problem.layers = correct_layers(problem, two_stages(), measured);
  const StageLoad load = StageComposer(problem).compose(two_stages()).stages[0];
  EXPECT_DOUBLE_EQ(load.backward_input, 0);
  EXPECT_DOUBLE_EQ(load.backward_weight, 18);
  EXPECT_DOUBLE_EQ(load.memory_input, 50);
  EXPECT_DOUBLE_EQ(load.peak_weight, 13);
}

TEST(CorrectLayers, AWholeBackwardScalesBothHalves) {
  PlanProblem problem = four_layers(true);
  MeasuredStage first;
  first.forward = 3;
  first.backward = 18;  // the layers have 9
  problem.layers = correct_layers(problem, two_stages(), std::vector{first, split_stage(9, 8, 10)});
  PlanChoice choice = two_stages();
  choice.whole_backward = true;
  EXPECT_DOUBLE_EQ(*StageComposer(problem).compose(choice).stages[0].backward, 18);
  EXPECT_DOUBLE_EQ(*StageComposer(problem).compose(choice).stages[1].backward, 18);
  const StageLoad load = StageComposer(problem).compose(two_stages()).stages[0];
  EXPECT_DOUBLE_EQ(load.backward_input, 8);
  EXPECT_DOUBLE_EQ(load.backward_weight, 10);
}

TEST(CorrectLayers, ARecomputingStageHasItsSecondForwardInB) {
  PlanProblem problem = four_layers(true);
  problem.input_bytes = 1;
  MeasuredStage first;
  first.forward = 6;
  first.backward = 30;
  first.memory_forward = 77;
  problem.layers =
      correct_layers(problem, two_stages(true), std::vector{first, split_stage(9, 8, 10)});
  const StageLoad load = StageComposer(problem).compose(two_stages(true)).stages[0];
  EXPECT_DOUBLE_EQ(load.forward, 6);
  EXPECT_DOUBLE_EQ(*load.backward, 30);
  EXPECT_DOUBLE_EQ(load.memory_forward, 1);
  // Without recompute it has what is left.
  PlanChoice whole = two_stages();
  whole.whole_backward = true;
  EXPECT_DOUBLE_EQ(*StageComposer(problem).compose(whole).stages[0].backward, 24);
}

}  // namespace
}  // namespace stagecraft
