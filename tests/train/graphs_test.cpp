// Trainers whose steps are replayed, against a device that is not there.

#include <atomic>
#include <cstring>
#include <memory>
#include <vector>

#include <ATen/record_function.h>

#include "stagecraft/train/trainer.h"
#include "tests/support/fake_graph_device.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {
namespace {

std::vector<double> train_small(TrainerSetup setup, GraphMode graphs, int32_t accumulate = 1) {
  setup.options.ranks = setup.stages;
  setup.options.graphs = graphs;
  setup.options.accumulate = accumulate;
  setup.options.microbatches = 3;
  Trainer trainer = make_trainer(std::move(setup));
  std::vector<double> numbers = curve(trainer, 10);
  const auto [inputs, targets] = batch_of(99);
  numbers.push_back(trainer.eval_loss({inputs}, targets));
  return numbers;
}

TEST(TrainerGraphs, CurvesAreTheSameWithAndWithoutReplays) {
  const FakeGraphDevices devices;
  for (const int32_t stages : {1, 2, 4}) {
    for (const double dropout : {0.0, 0.2}) {
      for (const bool casts : {false, true}) {
        TrainerSetup setup{.stages = stages};
        setup.sizes.dropout = dropout;
        if (casts) setup.use.autocast = at::kBFloat16;
        EXPECT_EQ(train_small(setup, GraphMode::kOn), train_small(setup, GraphMode::kOff))
            << stages << " stages, dropout " << dropout << ", casts " << casts;
      }
    }
  }
}

TEST(TrainerGraphs, StepsOfAnUpdateAddUp) {
  const FakeGraphDevices devices;
  const TrainerSetup setup{.stages = 2};
  EXPECT_EQ(train_small(setup, GraphMode::kOn, 3), train_small(setup, GraphMode::kOff, 3));
}

std::atomic<int64_t> casts_seen = 0;

std::unique_ptr<at::ObserverContext> count_cast(const at::RecordFunction& function) {
  if (std::strcmp(function.name(), "aten::_to_copy") == 0) ++casts_seen;
  return nullptr;
}

// Steps that measure memory cast weights in every microbatch.
TEST(SharedCasts, WeightsAreCastOnceInAStepWithTheSameBits) {
  const auto step = [](bool measures) {
    TrainerSetup setup{.stages = 1};
    setup.use.autocast = at::kBFloat16;
    setup.options.ranks = 1;
    setup.options.microbatches = 8;
    Trainer trainer = make_trainer(std::move(setup));
    const auto [inputs, targets] = batch_of(0);
    casts_seen = 0;
    const auto handle = at::addThreadLocalCallback(
        at::RecordFunctionCallback(&count_cast).scopes({at::RecordScope::FUNCTION}));
    const TrainStep result = trainer.step({inputs}, targets, measures);
    at::removeCallback(handle);
    return std::vector<double>{result.loss, result.grad_norm,
                               static_cast<double>(casts_seen.load())};
  };
  const std::vector<double> each = step(true);
  const std::vector<double> once = step(false);
  EXPECT_EQ(each[0], once[0]);
  EXPECT_EQ(each[1], once[1]);
  // Seven of the eight microbatches cast no weight.
  const auto saved = static_cast<int64_t>(each[2] - once[2]);
  EXPECT_GT(saved, 0);
  EXPECT_EQ(saved % 7, 0) << saved;
}

}  // namespace
}  // namespace stagecraft
