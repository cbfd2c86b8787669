// I and W for any tensors of a live graph, border by border.

#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>

#include "stagecraft/stage/backward.h"

namespace stagecraft {
namespace {

struct TwoLayers {
  at::Tensor x = at::randn({4, 3}).requires_grad_();
  at::Tensor w0 = at::randn({5, 3}).requires_grad_();
  at::Tensor w1 = at::randn({2, 5}).requires_grad_();

  at::Tensor forward() const { return at::linear(at::tanh(at::linear(x, w0)), w1); }
  std::vector<at::Tensor> take_grads() const {
    std::vector<at::Tensor> grads;
    for (const at::Tensor& each : {x, w0, w1}) {
      grads.push_back(each.grad());
      each.mutable_grad().reset();
    }
    return grads;
  }
};

TEST(BackwardOfEdges, LeavesAreInputsAndBordersLeadToTheirParameters) {
  const TwoLayers model;
  at::Tensor y = model.forward();
  const at::Tensor dy = at::randn({4, 2});
  y.backward(dy);
  const std::vector<at::Tensor> expected = model.take_grads();

  y = model.forward();
  const std::vector<GradEdge> inputs = {grad_edge_of(model.x)};
  const InputBackward split = backward_input({{grad_edge_of(y), dy}}, inputs);
  ASSERT_EQ(split.input_grads.size(), 1U);
  EXPECT_TRUE(at::equal(split.input_grads[0], expected[0]));
  for (const at::Tensor& each : {model.x, model.w0, model.w1}) EXPECT_FALSE(each.grad().defined());
  ASSERT_EQ(split.borders.size(), 2U);
  for (const BorderWork& border : split.borders) {
    ASSERT_EQ(border.parameters.size(), 1U);
    EXPECT_TRUE(border.parameters[0].is_same(model.w0) || border.parameters[0].is_same(model.w1));
  }

  backward_weight(split.borders, /*keep_graph=*/true);
  std::vector<at::Tensor> grads = model.take_grads();
  EXPECT_TRUE(at::equal(grads[1], expected[1]));
  EXPECT_TRUE(at::equal(grads[2], expected[2]));
  EXPECT_FALSE(grads[0].defined());
  // The graph was kept.
  backward_weight(split.borders, /*keep_graph=*/false);
  grads = model.take_grads();
  EXPECT_TRUE(at::equal(grads[1], expected[1]));
  EXPECT_TRUE(at::equal(grads[2], expected[2]));
}

TEST(BackwardOfEdges, AnInputWithoutHistoryHasNoGradient) {
  const TwoLayers model;
  const at::Tensor y = model.forward();
  const std::vector<GradEdge> inputs = {grad_edge_of(at::randn({2})), grad_edge_of(model.x)};
  const InputBackward split = backward_input({{grad_edge_of(y), at::ones_like(y)}}, inputs);
  EXPECT_FALSE(split.input_grads[0].defined());
  EXPECT_TRUE(split.input_grads[1].defined());
}

TEST(BackwardOfEdges, ARootThatLeadsToNoInputIsABorder) {
  const at::Tensor w = at::randn({3}).requires_grad_();
  const at::Tensor y = w * 2;
  const std::vector<GradEdge> inputs = {GradEdge()};
  const InputBackward split = backward_input({{grad_edge_of(y), at::ones_like(y)}}, inputs);
  EXPECT_FALSE(split.input_grads[0].defined());
  ASSERT_EQ(split.borders.size(), 1U);
  backward_weight(split.borders, false);
  EXPECT_TRUE(at::equal(w.grad(), at::ones_like(w) * 2));
}

}  // namespace
}  // namespace stagecraft
