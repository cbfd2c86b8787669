#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/batchnorm.h>

#include "stagecraft/stage/callable.h"
#include "tests/runtime/faults.h"
#include "tests/runtime/harness.h"

// Evaluation before, between and after training changes nothing in it.

namespace stagecraft {
namespace {

// Every stage draws random numbers.
TestModel dropout_chain(int32_t stages) {
  TestModel model = chain_model(stages);
  for (StageBody& body : model.bodies) {
    body.forward = [inner = body.forward](const Args& args, const Kwargs& kwargs) {
      return c10::IValue(at::dropout(inner(args, kwargs).toTensor(), 0.4, true));
    };
  }
  return model;
}

// #162822, DeepSpeed#3649: eval, train; train, eval, train. Torch 2.13 raises for two stages side
// by side on one rank (ZBV).
TEST(UsersEval, TrainingIsAsWithoutEvaluations) {
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const TestModel model = dropout_chain(each.stages());
      const Microbatches batch = random_batch(each.microbatches, 2 * each.microbatches, 5, 1);
      const Microbatches other = random_batch(each.microbatches, 3 * each.microbatches, 5, 2);

      Pipeline plain = make_pipeline(model, each, {.seed = 5});
      std::vector<std::vector<at::Tensor>> expected;
      for (int i = 0; i < 3; ++i) {
        plain.step(batch);
        expected.push_back(take_grads(model.bodies));
      }

      Pipeline pipeline = make_pipeline(model, each, {.seed = 5});
      for (int i = 0; i < 3; ++i) {
        for (int j = 0; j <= i; ++j) {
          pipeline.eval(other);
          EXPECT_EQ(num_pending(pipeline), 0U);
          for (const at::Tensor& grad : take_grads(model.bodies)) EXPECT_FALSE(grad.defined());
        }
        pipeline.step(batch);
        EXPECT_EQ(
            difference("gradient", take_grads(model.bodies), expected[static_cast<std::size_t>(i)]),
            "");
      }
    }
  }
}

// Torch 2.13 divides existing gradients by the number of microbatches.
TEST(UsersEval, BetweenBackwardAndOptimizerStep) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    const TestModel model = chain_model(each.stages());
    const Microbatches batch = random_batch(each.microbatches, 2 * each.microbatches, 5, 1);
    Pipeline pipeline = make_pipeline(model, each);
    pipeline.step(batch);
    std::vector<at::Tensor> before;
    std::vector<at::Tensor> now;
    for (const StageParameter& parameter : parameters_of(model.bodies)) {
      before.push_back(parameter.tensor.grad().clone());
    }
    pipeline.eval(batch);
    for (const StageParameter& parameter : parameters_of(model.bodies)) {
      now.push_back(parameter.tensor.grad());
    }
    EXPECT_EQ(difference("gradient", now, before), "");
    take_grads(model.bodies);
  }
}

TEST(UsersEval, LeavesTheProcesssRandomNumbersAlone) {
  const TestModel model = dropout_chain(2);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B", .seed = 5});
  at::manual_seed(3);
  const at::Tensor expected = at::rand({4});
  at::manual_seed(3);
  pipeline.eval(random_batch(2, 4, 5, 1));
  pipeline.step(random_batch(2, 4, 5, 1));
  EXPECT_EQ(difference("random numbers", at::rand({4}), expected), "");
  take_grads(model.bodies);
}

TEST(UsersEval, GivesTheOutputsAndLossesOfTheModel) {
  for (const int32_t ranks : {1, 2, 3}) {
    for (const ScheduleCase& each : training_cases(ranks)) {
      SCOPED_TRACE(to_string(each));
      const TestModel model = chain_model(each.stages());
      const Microbatches batch = random_batch(each.microbatches, 2 * each.microbatches, 5, 1);
      Pipeline pipeline = make_pipeline(model, each);
      const StepResult trained = pipeline.step(batch, {.outputs = OutputMode::kEach});
      const StepResult result = pipeline.eval(batch, {.outputs = OutputMode::kEach});
      ASSERT_EQ(result.outputs.size(), batch.inputs.size());
      for (std::size_t m = 0; m < result.outputs.size(); ++m) {
        EXPECT_EQ(difference("output", result.outputs[m], trained.outputs[m]), "");
        EXPECT_FALSE(result.outputs[m].toTensor().requires_grad());
      }
      EXPECT_EQ(difference("loss", result.losses, trained.losses), "");
      Microbatches inputs = batch;
      inputs.targets.clear();
      EXPECT_TRUE(pipeline.eval(inputs).losses.empty()) << "without a target there is none";
      take_grads(model.bodies);
    }
  }
}

// Nothing is kept: each microbatch's values are gone when the next stage has read them.
TEST(UsersEval, KeepsNothing) {
  const auto probe = std::make_shared<Probe>();
  const TestModel model = probed_chain(4, probe);
  Pipeline pipeline = make_pipeline(model, {.schedule = "Interleaved1F1B", .ranks = 2});
  pipeline.eval(random_batch(6, 12, 5, 1), {.outputs = OutputMode::kNone});
  EXPECT_EQ(probe->take_num_alive(), 0U);
  {
    const StepResult result =
        pipeline.eval(random_batch(6, 12, 5, 1), {.outputs = OutputMode::kEach});
    EXPECT_EQ(probe->take_num_alive(), 6U) << "the outputs themselves";
  }
}

// Torch 2.13 runs an extra forward and an extra loss at each switch.
TEST(UsersEval, NoUserCodeRunsThatNobodyAskedFor) {
  for (const ScheduleCase& each : training_cases(2)) {
    SCOPED_TRACE(to_string(each));
    TestModel model = chain_model(each.stages());
    auto forwards = std::make_shared<std::atomic<int>>(0);
    auto losses = std::make_shared<std::atomic<int>>(0);
    for (StageBody& body : model.bodies) {
      body.forward = [inner = body.forward, forwards](const Args& args, const Kwargs& kwargs) {
        ++*forwards;
        return inner(args, kwargs);
      };
    }
    model.loss = [losses](const at::Tensor& y, const at::Tensor& target) {
      ++*losses;
      return at::mse_loss(y, target);
    };
    Pipeline pipeline = make_pipeline(model, each);
    EXPECT_EQ(*forwards, 0);
    for (const bool is_training : {true, false, true, false, false, true}) {
      for (const int64_t rows : {8, 9}) {
        *forwards = *losses = 0;
        const Microbatches batch = random_batch(4, rows, 5, 1);
        if (is_training) {
          pipeline.step(batch);
        } else {
          pipeline.eval(batch);
        }
        EXPECT_EQ(*forwards, 4 * each.stages());
        EXPECT_EQ(*losses, 4);
      }
    }
    take_grads(model.bodies);
  }
}

// Torch 2.13 counts 5 batches for 4 microbatches: one is its own inference of shapes.
TEST(UsersEval, BatchNormCountsEachMicrobatchOnce) {
  auto make = [](torch::nn::BatchNorm1d norm) {
    TestModel model = chain_model(3);
    model.bodies[1] = stage_body(norm);
    return model;
  };
  const Microbatches batch = random_batch(4, 12, 5, 1);
  const torch::nn::BatchNorm1d norm(5);
  const TestModel model = make(norm);
  Pipeline pipeline = make_pipeline(model, {.schedule = "1F1B"});
  const torch::nn::BatchNorm1d other(5);
  TestModel reference = model;
  reference.bodies[1] = stage_body(other);
  for (int64_t step = 1; step <= 2; ++step) {
    pipeline.step(batch);
    train_cut(reference, batch, weight_order(pipeline.recording().schedule), {});
    EXPECT_EQ(norm->num_batches_tracked.item<int64_t>(), 4 * step);
    EXPECT_EQ(difference("mean", norm->running_mean, other->running_mean), "");
    EXPECT_EQ(difference("variance", norm->running_var, other->running_var), "");
  }
  take_grads(model.bodies);
}

}  // namespace
}  // namespace stagecraft
