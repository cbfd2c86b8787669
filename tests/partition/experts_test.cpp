// A mixture of experts whose tokens are sorted by expert, as Hugging Face computes it.

#include <cstdint>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/grouped_mm.h"
#include "stagecraft/graph/own_operators.h"
#include "stagecraft/partition/flops.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/stage/callable.h"
#include "tests/partition/pipe_check.h"

namespace stagecraft {
namespace {

using at::Tensor;

constexpr int64_t kExpertsWidth = 6;
constexpr int64_t kExperts = 4;
constexpr int64_t kChosen = 2;

Tensor grouped_product(const Tensor& input, const Tensor& weight, const Tensor& offs) {
  register_own_operators();
  torch::jit::Stack stack{input, weight, offs};
  c10::Dispatcher::singleton().findSchemaOrThrow(kGroupedMmOperator, "").callBoxed(stack);
  return stack.at(0).toTensor();
}

Tensor experts_weight(std::vector<int64_t> sizes, double step) {
  int64_t count = 1;
  for (const int64_t size : sizes) count *= size;
  return at::arange(count, at::kFloat).mul(step).sin().mul(0.5).view(sizes).requires_grad_();
}

struct ExpertsLayer {
  Tensor router;
  Tensor up;
  Tensor down;

  Tensor forward(const Tensor& x) const {
    const auto [weights, experts] = at::softmax(x.mm(router.t()), -1).topk(kChosen, -1);
    const auto [sorted, order] = experts.reshape({-1}).sort();
    const Tensor ends = at::one_hot(sorted, kExperts).sum(0).cumsum(0).to(at::kInt);
    const Tensor rows = x.index_select(0, at::floor_divide(order, kChosen));
    const Tensor hidden = grouped_product(rows, up.transpose(1, 2), ends).relu();
    const Tensor each = grouped_product(hidden, down, ends) *
                        weights.reshape({-1}).index_select(0, order).unsqueeze(-1);
    const Tensor in_order = at::zeros_like(each).index_copy(0, order, each);
    return x + in_order.view({-1, kChosen, kExpertsWidth}).sum(1);
  }
};

StageBody experts_model() {
  std::vector<ExpertsLayer> layers;
  NamedTensors parameters;
  for (int i = 0; i < 4; ++i) {
    layers.push_back({experts_weight({kExperts, kExpertsWidth}, 1.3 + i),
                      experts_weight({kExperts, 8, kExpertsWidth}, 0.7 + i),
                      experts_weight({kExperts, 8, kExpertsWidth}, 0.9 + i)});
    const std::string prefix = "layers." + std::to_string(i) + ".";
    parameters.emplace_back(prefix + "router", layers.back().router);
    parameters.emplace_back(prefix + "up", layers.back().up);
    parameters.emplace_back(prefix + "down", layers.back().down);
  }
  return stage_body(
      [layers](Tensor x) {
        for (const ExpertsLayer& layer : layers) x = layer.forward(x);
        return x;
      },
      parameters);
}

Arguments experts_rows(int64_t count) {
  return {
      {at::arange(count * kExpertsWidth, at::kFloat).mul(0.37).cos().view({count, kExpertsWidth})},
      {}};
}

TEST(Experts, AreSplitAndTrained) {
  const StageBody model = experts_model();
  const Pipe pipe = pipeline(model, experts_rows(4),
                             {.points = {{"layers.1", SplitPoint::kBeginning},
                                         {"layers.2", SplitPoint::kBeginning},
                                         {"layers.3", SplitPoint::kBeginning}}});
  ASSERT_EQ(pipe.num_stages(), 4);
  expect_same_run(pipe, model, experts_rows(6));
  // Among the schedules are some that split the backward.
  EXPECT_EQ(train_everywhere(pipe, experts_rows), "");
}

TEST(Experts, CountTheProductOfEachRow) {
  const Graph graph = pipeline(experts_model(), experts_rows(4)).graph();
  EXPECT_THAT(to_text(graph), testing::HasSubstr(kGroupedMmOperator));
  int products = 0;
  for (const GraphNode& node : graph.parts().nodes) {
    if (node.op.name != kGroupedMmOperator) continue;
    EXPECT_EQ(example_flops(graph, node), 2 * (4 * kChosen) * 8 * kExpertsWidth) << node.name;
    ++products;
  }
  EXPECT_EQ(products, 8);
}

}  // namespace
}  // namespace stagecraft
