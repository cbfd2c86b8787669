#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/cat.h>
#include <ATen/ops/mse_loss.h>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "tests/runtime/harness.h"
#include "tests/support/expect_error.h"

// What went wrong for users of other pipelines, each once in public: here batches, microbatches,
// accumulation and placement. users_border_test.cpp has what crosses borders, users_eval_test.cpp
// evaluation, users_memory_test.cpp memory. Elsewhere or later: one rank that throws
// (failure_test.cpp, failure_spmd_test.cpp); many works a batch, which belongs to process groups;
// names in checkpoints and the norm of all gradients, which belong to training.

namespace stagecraft {
namespace {

// 1, fewer than ranks, and not divisible by them; with one and two stages a rank.
TEST(Users, AnyNumberOfMicrobatches) {
  int trained = 0;
  int refused = 0;
  int expected = 0;
  for (const int32_t ranks : {2, 3, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      const TestModel model = chain_model(each.stages());
      Pipeline pipeline = make_pipeline(model, each);
      for (const int32_t microbatches : {1, 2, 3, 5, 7, 9}) {
        SCOPED_TRACE(to_string(each) + ", but " + std::to_string(microbatches));
        const Microbatches batch = random_batch(microbatches, 2 * microbatches + 1, 5, 1);
        ++expected;
        if (!each.takes(microbatches)) {
          EXPECT_ERROR(pipeline.step(batch), ArgumentError, "the nearest legal value is");
          ++refused;
          continue;
        }
        EXPECT_EQ(check_step(pipeline, model, batch), "");
        ++trained;
      }
    }
  }
  EXPECT_GE(expected, 3 * 7 * 6);
  EXPECT_EQ(trained + refused, expected);
  EXPECT_GE(refused, 3 + 4 + 5);  // DualPipeV's
}

// #126600: (3, 3, 2), not (3, 3, 3).
TEST(Users, EightRowsInThreeMicrobatches) {
  for (const ScheduleCase& each : training_cases(2)) {
    if (!each.takes(3)) continue;
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    const at::Tensor x = random_tensor({8, 5}, 1);
    const at::Tensor y = random_tensor({8, 5}, 2);
    Pipeline pipeline = make_pipeline(model, each);
    const StepResult result = pipeline.step({x}, {}, y, {.microbatches = 3});
    const std::vector<at::Tensor> grads = take_grads(model.bodies);
    EXPECT_EQ(result.weights, (std::vector<double>{3.0 / 8, 3.0 / 8, 2.0 / 8}));

    const Microbatches whole = split_batch({x}, {}, y, {.microbatches = 1});
    const WeightOrder order(static_cast<std::size_t>(each.stages()), {MicrobatchId(0)});
    const Trained expected = train_uncut(model, whole, order, {});
    EXPECT_EQ(difference("gradient", grads, take_grads(model.bodies), 1e-6), "");
    EXPECT_EQ(difference("loss", result.loss(), expected.losses[0], 1e-6), "");
    EXPECT_EQ(difference("output", result.output.toTensor(), expected.outputs[0].toTensor(), 1e-6),
              "");
    const StepResult pieces =
        pipeline.eval({x}, {}, {}, {.microbatches = 3, .outputs = OutputMode::kEach});
    std::vector<int64_t> rows;
    for (const c10::IValue& piece : pieces.outputs) rows.push_back(piece.toTensor().size(0));
    EXPECT_EQ(rows, (std::vector<int64_t>{3, 3, 2}));
  }
}

// torchtitan#1733, DeepSpeed#8154: k steps of m microbatches are one batch of k x m; nothing that
// was accumulated is scaled again.
TEST(Users, AccumulationEqualsOneBigBatch) {
  constexpr int32_t kSteps = 3;
  for (const int32_t ranks : {1, 2, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const int64_t rows = 2 * each.microbatches;
      const TestModel model = chain_model(each.stages());
      const at::Tensor x = random_tensor({kSteps * rows, 5}, 1);
      const at::Tensor y = random_tensor({kSteps * rows, 5}, 2);
      Pipeline pipeline = make_pipeline(model, each);
      StepOptions options{.microbatches = each.microbatches};
      options.weights.assign(static_cast<std::size_t>(each.microbatches),
                             1.0 / (kSteps * each.microbatches));
      for (int64_t k = 0; k < kSteps; ++k) {
        pipeline.step({x.narrow(0, k * rows, rows)}, {}, y.narrow(0, k * rows, rows), options);
        pipeline.eval({x.narrow(0, k * rows, rows)}, {}, y.narrow(0, k * rows, rows), options);
      }
      const std::vector<at::Tensor> grads = take_grads(model.bodies);
      const Microbatches whole = split_batch({x}, {}, y, {.microbatches = 1});
      train_uncut(model, whole,
                  WeightOrder(static_cast<std::size_t>(each.stages()), {MicrobatchId(0)}), {});
      EXPECT_EQ(difference("gradient", grads, take_grads(model.bodies), 1e-6), "");
    }
  }
}

// Sums instead of means: the weights are 1 and the loss adds up over everything.
TEST(Users, SumsAccumulateWithoutWeights) {
  TestModel model = chain_model(2);
  model.loss = [](const at::Tensor& y, const at::Tensor& target) {
    return y.sub(target).pow(2).sum();
  };
  const at::Tensor x = random_tensor({11, 5}, 1);
  const at::Tensor y = random_tensor({11, 5}, 2);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
  const StepResult result =
      pipeline.step({x}, {}, y, {.microbatches = 4, .scale = LossScale::kSum});
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  const Microbatches whole = split_batch({x}, {}, y, {.microbatches = 1});
  const Trained expected = train_uncut(model, whole, WeightOrder(2, {MicrobatchId(0)}), {});
  EXPECT_EQ(difference("gradient", grads, take_grads(model.bodies), 1e-6), "");
  EXPECT_EQ(difference("loss", result.loss(), expected.losses[0], 1e-6), "");
}

// A loss that is the mean over tokens. Microbatches have different numbers of tokens.
TEST(Users, TokenWeightedLoss) {
  TestModel model = chain_model(3);
  model.loss = [](const at::Tensor& y, const at::Tensor& target) {
    const at::Tensor mask = target.ne(-100);
    return y.sub(target).pow(2).masked_select(mask).mean();
  };
  const at::Tensor x = random_tensor({8, 5}, 1);
  at::Tensor y = random_tensor({8, 5}, 2);
  y.narrow(0, 0, 2).narrow(1, 1, 4).fill_(-100);  // 2 tokens in the first microbatch, 10 in others
  const std::vector<double> weights = {2.0 / 32, 10.0 / 32, 10.0 / 32, 10.0 / 32};
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
  const StepResult result = pipeline.step({x}, {}, y, {.microbatches = 4, .weights = weights});
  const std::vector<at::Tensor> grads = take_grads(model.bodies);
  const Microbatches whole = split_batch({x}, {}, y, {.microbatches = 1});
  const Trained expected = train_uncut(model, whole, WeightOrder(3, {MicrobatchId(0)}), {});
  EXPECT_EQ(difference("gradient", grads, take_grads(model.bodies), 1e-6), "");
  EXPECT_EQ(difference("loss", result.loss(), expected.losses[0], 1e-6), "");
}

// Automodel#3530: the shape and the number of microbatches change, and gradients accumulate.
TEST(Users, AShapeChangeBetweenAccumulationStepsKeepsGradients) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    Pipeline pipeline = make_pipeline(model, each);
    const std::vector<Microbatches> batches = {random_batch(4, 8, 5, 1), random_batch(5, 13, 5, 2),
                                               random_batch(4, 4, 5, 3)};
    std::vector<WeightOrder> orders;
    for (const Microbatches& batch : batches) {
      pipeline.step(batch);
      orders.push_back(weight_order(pipeline.recording().schedule));
    }
    const std::vector<at::Tensor> grads = take_grads(model.bodies);
    for (std::size_t i = 0; i < batches.size(); ++i) train_cut(model, batches[i], orders[i], {});
    EXPECT_EQ(difference("gradient", grads, take_grads(model.bodies)), "");
  }
}

// Torch 2.13 silently returns extra rows for a smaller batch and aborts on a larger one.
TEST(Users, TheNextBatchMayBeSmallerOrLarger) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    Pipeline pipeline = make_pipeline(model, each);
    for (const int64_t rows : {8, 7, 20, 4}) {
      const at::Tensor x = random_tensor({rows, 5}, 1);
      const StepResult result = pipeline.eval({x}, {}, {}, {.microbatches = 4});
      EXPECT_EQ(result.output.toTensor().size(0), rows);
      EXPECT_EQ(check_step(pipeline, model, random_batch(4, rows, 5, 2)), "");
    }
  }
}

// Torch 2.13 gives silently wrong gradients for ZBV with 2 ranks and 3 microbatches when receives
// are put off to where they are needed: it matches messages by their order.
TEST(Users, ReceivesMayStandAnywhere) {
  for (const int32_t ranks : {2, 3, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      for (const int32_t microbatches : {3, 2 * ranks, 2 * ranks + 1}) {
        if (!each.takes(microbatches)) continue;
        for (const int32_t prefetch : {0, 1, 3}) {
          SCOPED_TRACE(to_string(each) + ", but " + std::to_string(microbatches) + ", prefetch " +
                       std::to_string(prefetch));
          const Schedule schedule =
              lower(build_schedule(each.name, {.ranks = ranks,
                                               .microbatches = microbatches,
                                               .stages_per_rank = each.stages_per_rank}),
                    {.prefetch = prefetch});
          const TestModel model = chain_model(each.stages());
          Pipeline pipeline = make_pipeline(model, {.source = ScheduleSource::fixed(schedule)});
          EXPECT_EQ(check_step(pipeline, model, random_batch(microbatches, 2 * microbatches, 5, 1)),
                    "");
        }
      }
    }
  }
}

// #172668, sglang#23645: a send that ends only when its receive is posted.
TEST(Users, NoScheduleReliesOnBuffers) {
  for (const int32_t ranks : {2, 3, 4}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      const TestModel model = chain_model(each.stages());
      Pipeline pipeline =
          make_pipeline(model, each, {.timeout = std::chrono::seconds(20), .zero_buffering = true});
      for (const int32_t microbatches : {each.microbatches, each.microbatches + 1}) {
        SCOPED_TRACE(to_string(each) + ", but " + std::to_string(microbatches));
        const Microbatches batch = random_batch(microbatches, 2 * microbatches, 5, 1);
        EXPECT_EQ(check_step(pipeline, model, batch), "");
        pipeline.eval(batch);
      }
    }
  }
}

// GPipe over any placement.
Schedule gpipe_over(const Placement& placement, int32_t microbatches) {
  std::vector<ActionList> lists(static_cast<std::size_t>(placement.num_ranks()));
  for (Rank rank(0); rank.value() < placement.num_ranks(); ++rank) {
    const std::span<const StageId> stages = placement.stages(rank);
    ActionList& list = lists[static_cast<std::size_t>(rank.value())];
    for (std::size_t i = 0; i < stages.size(); ++i) {
      for (MicrobatchId m(0); m.value() < microbatches; ++m) {
        list.emplace_back(stages[i], ActionType::kForward, m);
      }
    }
    for (std::size_t i = stages.size(); i-- > 0;) {
      for (MicrobatchId m(0); m.value() < microbatches; ++m) {
        list.emplace_back(stages[i], ActionType::kBackward, m);
      }
    }
  }
  return {Level::kCompute, placement, std::move(lists)};
}

// Megatron#1304: 30 layers on 4 ranks are 8 + 8 + 7 + 7, and all of them are trained.
TEST(Users, ThirtyLayersOnFourRanks) {
  const std::vector<int32_t> layers = {8, 8, 7, 7};
  std::vector<std::optional<Rank>> ranks;
  for (int32_t r = 0; r < 4; ++r) {
    ranks.insert(ranks.end(), static_cast<std::size_t>(layers[static_cast<std::size_t>(r)]),
                 Rank(r));
  }
  const Placement placement = Placement::of(ranks, 4);
  const TestModel model = chain_model(30);
  Pipeline pipeline =
      make_pipeline(model, {.source = ScheduleSource::made_by(
                                [&](int32_t m) { return gpipe_over(placement, m); }, placement)});
  std::vector<std::atomic<int>> forwards(30);
  pipeline.callbacks().observe([&](Rank, Action action, ActionPhase phase) {
    if (phase == ActionPhase::kBegin && action.type() == ActionType::kForward) {
      ++forwards[static_cast<std::size_t>(action.stage().value())];
    }
  });
  EXPECT_EQ(check_step(pipeline, model, random_batch(4, 8, 5, 1)), "");
  for (const std::atomic<int>& each : forwards) EXPECT_EQ(each, 4);
  pipeline.step(random_batch(4, 8, 5, 1));
  for (const at::Tensor& grad : take_grads(model.bodies)) ASSERT_TRUE(grad.defined());

  // What cannot be dealt out evenly is refused, not dropped.
  EXPECT_ERROR(make_pipeline(model, {.schedule = "Interleaved1F1B", .ranks = 4}), ArgumentError,
               "30 stages cannot be placed evenly on 4 ranks");
  std::vector<Stage> short_of_one = model.make_stages();
  short_of_one.pop_back();
  EXPECT_THROW(Pipeline(std::move(short_of_one),
                        {.source = ScheduleSource::fixed(gpipe_over(placement, 4))}),
               ArgumentError);
}

// Stages 0, 1, 4 and 2, 3; a rank with one stage of four; stages of a rank far from each other.
TEST(Users, AnyPlacement) {
  const std::vector<std::vector<int32_t>> placements = {
      {0, 0, 1, 1, 0}, {0, 1, 1, 1}, {1, 0, 2, 0, 1, 2}, {2, 1, 0}, {0, 0, 0, 1}};
  for (const std::vector<int32_t>& each : placements) {
    std::vector<std::optional<Rank>> ranks;
    int32_t last = 0;
    for (const int32_t rank : each) {
      ranks.emplace_back(Rank(rank));
      last = std::max(last, rank);
    }
    const Placement placement = Placement::of(ranks, last + 1);
    SCOPED_TRACE(to_string(placement));
    const TestModel model = chain_model(static_cast<int32_t>(each.size()));
    Pipeline pipeline =
        make_pipeline(model, {.source = ScheduleSource::made_by(
                                  [&](int32_t m) { return gpipe_over(placement, m); }, placement)});
    for (const int32_t microbatches : {1, 4}) {
      EXPECT_EQ(check_step(pipeline, model, random_batch(microbatches, 9, 5, 1)), "");
    }
  }
}

}  // namespace
}  // namespace stagecraft
