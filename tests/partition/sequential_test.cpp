#include "stagecraft/partition/sequential.h"

#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>

#include "stagecraft/base/error.h"
#include "stagecraft/runtime/pipeline.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

torch::nn::Sequential make_model() {
  return torch::nn::Sequential(torch::nn::Linear(4, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32), torch::nn::ReLU(),
                               torch::nn::Linear(32, 32), torch::nn::Linear(32, 2));
}

TEST(Sequential, IsCutWithoutCapture) {
  torch::nn::Sequential model = make_model();
  const std::vector<StageBody> bodies = sequential_stages(model, 2);
  ASSERT_EQ(bodies.size(), 2U);
  std::set<std::string> names;
  for (const StageBody& body : bodies) {
    for (const auto& [name, tensor] : body.parameters)
      EXPECT_TRUE(names.insert(name).second) << name;
  }
  for (const auto& item : model->named_parameters())
    EXPECT_TRUE(names.contains(item.key())) << item.key();
  EXPECT_EQ(names.size(), model->named_parameters().size());

  std::vector<Stage> stages;
  for (int32_t i = 0; i < 2; ++i)
    stages.emplace_back(StageId(i), 2, bodies[static_cast<std::size_t>(i)]);
  Pipeline run(std::move(stages), {.threads_per_rank = 1});
  const at::Tensor x = torch::randn({3, 4});
  EXPECT_TRUE(run.eval({x}, {}, {}, {.microbatches = 1})
                  .output.toTensor()
                  .equal(model->forward(x).detach()));
}

TEST(Sequential, BalancesBytes) {
  EXPECT_EQ(detail::balance_layers({1, 1, 1, 1}, 2), (std::vector<std::size_t>{0, 2}));
  EXPECT_EQ(detail::balance_layers({9, 1, 1, 1}, 2), (std::vector<std::size_t>{0, 1}));
  EXPECT_EQ(detail::balance_layers({0, 0, 9}, 3), (std::vector<std::size_t>{0, 1, 2}));
}

TEST(Sequential, RefusesOtherCuts) {
  torch::nn::Sequential model = make_model();
  EXPECT_ERROR(sequential_stages(model, 7), ArgumentError,
               "expected 1 to 6 stages for 6 layers, got 7");
  EXPECT_ERROR(sequential_stages(model, std::vector<std::size_t>{1}), ArgumentError,
               "begin with layer 0");
  EXPECT_ERROR(sequential_stages(model, std::vector<std::size_t>{0, 3, 3}), ArgumentError,
               "stage 2: expected a beginning above 3 and below 6, got 3");
  EXPECT_ERROR(sequential_stages(model, std::vector<std::size_t>{0, 9}), ArgumentError,
               "stage 1: expected a beginning above 0 and below 6, got 9");
  EXPECT_ERROR(sequential_stages(model, 2)[0].forward({}, {}), ArgumentError,
               "takes one tensor, got 0 arguments");
}

}  // namespace
}  // namespace stagecraft
