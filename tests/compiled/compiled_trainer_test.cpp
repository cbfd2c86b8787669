#include <cstdint>
#include <string>
#include <vector>

#include <ATen/ops/equal.h>

#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/runtime/measure_layers.h"
#include "stagecraft/train/trainer.h"
#include "tests/compiled/packages.h"

namespace stagecraft {
namespace {

constexpr int64_t kSteps = 6;

TrainerOptions trainer_options(const std::string& schedule, int32_t ranks) {
  TrainerOptions options{.schedule = schedule, .ranks = ranks};
  options.microbatches = 4;
  options.learning_rate = {.peak = 0.01, .least = 0.001, .warmup = 2, .steps = kSteps};
  options.seed = 7;
  return options;
}

std::vector<double> train(Trainer& trainer, int64_t until) {
  std::vector<double> numbers;
  while (trainer.steps() < until) {
    const auto seed = static_cast<uint64_t>(trainer.steps());
    const TrainStep step = trainer.step(token_arguments(8, 100 + seed), {});
    numbers.push_back(step.loss);
    numbers.push_back(step.grad_norm);
  }
  return numbers;
}

std::vector<double> curve_of(const Pipe& pipe, const std::string& schedule, int32_t ranks) {
  Trainer trainer(pipe, own_loss(), trainer_options(schedule, ranks));
  return train(trainer, kSteps);
}

TEST(CompiledTrainer, TrainsLikeTheGraphs) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  const CompiledPipe other = CompiledPipe::load(package_path("gpt"));
  const std::vector<double> own = curve_of(pipe, "Interleaved1F1B", 2);
  const std::vector<double> expected = curve_of(graphs_of(other), "Interleaved1F1B", 2);
  ASSERT_EQ(own.size(), expected.size());
  for (std::size_t i = 0; i < own.size(); ++i) EXPECT_NEAR(own[i], expected[i], 1e-4) << i;
  EXPECT_LT(own[own.size() - 2], own[0]);
}

TEST(CompiledTrainer, HasTheSameBitsOnAnyNumberOfRanks) {
  std::vector<std::vector<double>> curves;
  for (const int32_t ranks : {1, 2, 4}) {
    curves.push_back(curve_of(CompiledPipe::load(package_path("gpt")),
                              ranks == 4 ? "1F1B" : "Interleaved1F1B", ranks));
  }
  EXPECT_EQ(curves[0], curves[1]);
  EXPECT_EQ(curves[0], curves[2]);
}

TEST(CompiledTrainer, ContinuesFromACheckpointWithTheSameBits) {
  for (const char* schedule : {"Interleaved1F1B", "ZBVZeroBubble"}) {
    const std::vector<double> whole =
        curve_of(CompiledPipe::load(package_path("gpt")), schedule, 2);
    Trainer first(CompiledPipe::load(package_path("gpt")), own_loss(),
                  trainer_options(schedule, 2));
    std::vector<double> parts = train(first, 3);
    const Checkpoint checkpoint = first.checkpoint();
    Trainer second(CompiledPipe::load(package_path("gpt")), own_loss(),
                   trainer_options(schedule, 2));
    second.restore(checkpoint);
    for (const double number : train(second, kSteps)) parts.push_back(number);
    EXPECT_EQ(parts, whole) << schedule;
  }
}

TEST(CompiledTrainer, IsMeasuredForPlans) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("gpt"));
  Microbatches batch;
  for (uint64_t m = 0; m < 2; ++m) {
    batch.inputs.push_back(token_arguments(2, m));
  }
  const std::vector<PlanLayer> layers = measure_layers(
      pipe, own_loss(), batch, {"blocks.0", "blocks.1", "norm"}, {.warm_up = 1, .steps = 2});
  ASSERT_EQ(layers.size(), 4U);
  for (const PlanLayer& layer : layers) {
    EXPECT_GT(layer.cost.forward, 0);
    EXPECT_GT(layer.cost.backward_weight, 0);
    EXPECT_GT(layer.cost.memory_forward, 0);
  }
  EXPECT_GT(layers[1].cost.memory_freed_by_input, 0);
}

}  // namespace
}  // namespace stagecraft
