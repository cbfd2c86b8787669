#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/sin.h>

#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/random_scope.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

// What PyTorch's own tests of the split backward cover (test_backward.py, StageBackwardTests), one
// test here for each there, and those that its main branch added. The reference is plain autograd
// over the same function; gradients are the same bits.

namespace stagecraft {
namespace {

constexpr MicrobatchId kFirst(0);

at::Tensor random(std::vector<int64_t> sizes, uint64_t seed) {
  const RandomScope scope(mix_seed(seed, 0, 0, 0));
  return at::randn(sizes);
}

// Linear, relu, linear, relu.
struct Mlp {
  std::vector<at::Tensor> parameters;

  Mlp() {
    for (uint64_t i = 0; i < 2; ++i) {
      parameters.push_back(random({7, 7}, 2 * i).requires_grad_(true));
      parameters.push_back(random({7}, 2 * i + 1).requires_grad_(true));
    }
  }
  at::Tensor forward(const at::Tensor& x) const {
    const at::Tensor h = at::relu(at::linear(x, parameters[0], parameters[1]));
    return at::relu(at::linear(h, parameters[2], parameters[3]));
  }
  Stage stage() const {
    return {StageId(0), 1, stage_body([*this](const at::Tensor& x) { return forward(x); })};
  }
};

std::vector<at::Tensor> take(const std::vector<at::Tensor>& parameters) {
  std::vector<at::Tensor> grads;
  for (const at::Tensor& parameter : parameters) {
    grads.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  return grads;
}

void expect_same_bits(const std::vector<at::Tensor>& got, const std::vector<at::Tensor>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    ASSERT_EQ(got[i].defined(), expected[i].defined()) << i;
    if (got[i].defined()) {
      EXPECT_TRUE(at::equal(got[i], expected[i])) << i;
    }
  }
}

class BackwardCatalogue : public testing::Test {
 protected:
  BackwardCatalogue() {
    const at::Tensor leaf = x_.detach().requires_grad_(true);
    at::mse_loss(mlp_.forward(leaf), target_).backward();
    expected_input_ = leaf.grad();
    expected_ = take(mlp_.parameters);
  }

  void forward(Stage& stage) {
    const c10::IValue output = stage.forward(kFirst, {{x_.detach().requires_grad_(true)}, {}});
    stage.set_loss(kFirst, at::mse_loss(output.toTensor(), target_));
  }

  Mlp mlp_;
  at::Tensor x_ = random({5, 7}, 10);
  at::Tensor target_ = random({5, 7}, 11);
  at::Tensor expected_input_;
  std::vector<at::Tensor> expected_;
};

// test_stage_backward
TEST_F(BackwardCatalogue, StageBackward) {
  Stage stage = mlp_.stage();
  forward(stage);
  const std::vector<c10::IValue> grads = stage.backward(kFirst, {});
  ASSERT_EQ(grads.size(), 1U);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), expected_input_));
  expect_same_bits(take(mlp_.parameters), expected_);
  EXPECT_EQ(stage.num_pending(), 0U);
}

// test_stage_backward_input
TEST_F(BackwardCatalogue, StageBackwardInput) {
  Stage stage = mlp_.stage();
  forward(stage);
  const std::vector<c10::IValue> grads = stage.backward_input(kFirst, {});
  ASSERT_EQ(grads.size(), 1U);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), expected_input_));
  for (const at::Tensor& parameter : mlp_.parameters) EXPECT_FALSE(parameter.grad().defined());
  EXPECT_EQ(stage.num_pending(), 1U);
}

// test_stage_backward_weight
TEST_F(BackwardCatalogue, StageBackwardWeight) {
  Stage stage = mlp_.stage();
  forward(stage);
  stage.backward_input(kFirst, {});
  stage.backward_weight(kFirst);
  expect_same_bits(take(mlp_.parameters), expected_);
  EXPECT_EQ(stage.num_pending(), 0U);
}

// test_stage_backward_weight_multiple_iters
TEST_F(BackwardCatalogue, StageBackwardWeightMultipleIters) {
  Stage stage = mlp_.stage();
  for (int32_t m = 0; m < 10; ++m) {
    const at::Tensor x = random({5, 7}, 100 + static_cast<uint64_t>(m)).requires_grad_(true);
    const c10::IValue output = stage.forward(MicrobatchId(m), {{x}, {}});
    stage.set_loss(MicrobatchId(m), at::mse_loss(output.toTensor(), target_));
    stage.backward_input(MicrobatchId(m), {});
    if (m % 2 == 1) {  // two at a time between I and W
      stage.backward_weight(MicrobatchId(m - 1));
      stage.backward_weight(MicrobatchId(m));
    }
  }
  const std::vector<at::Tensor> got = take(mlp_.parameters);
  for (uint64_t m = 0; m < 10; ++m) {
    const at::Tensor x = random({5, 7}, 100 + m).requires_grad_(true);
    at::mse_loss(mlp_.forward(x), target_).backward();
  }
  expect_same_bits(got, take(mlp_.parameters));
}

// test_stage_backward_weight_grad_validation: of what is captured between I and W, two gradients,
// one, and one beside none.
TEST_F(BackwardCatalogue, StageBackwardWeightGradValidation) {
  const at::Tensor weight = random({6, 7}, 20).requires_grad_(true);
  const at::Tensor g = random({5, 3}, 21);
  auto body = [weight](const at::Tensor& x) {
    const std::vector<at::Tensor> halves = at::linear(x, weight).chunk(2, 1);
    return std::vector<at::Tensor>{at::sin(halves[0]), at::sin(halves[1])};
  };
  const std::vector<std::vector<bool>> cases = {
      {true, true}, {true, false}, {false, true}, {false, false}};
  for (const std::vector<bool>& has : cases) {
    Stage stage(StageId(0), 1, stage_body(body));
    const at::Tensor x = x_.detach().requires_grad_(true);
    stage.forward(kFirst, {{x}, {}});
    const std::vector<c10::IValue> grads = stage.backward_input(
        kFirst, {has[0] ? c10::IValue(g) : c10::IValue(), has[1] ? c10::IValue(g) : c10::IValue()});
    stage.backward_weight(kFirst);
    const at::Tensor got = take({weight})[0];

    const std::vector<at::Tensor> outputs = body(x);
    std::vector<at::Tensor> used;
    for (std::size_t i = 0; i < 2; ++i) {
      if (has[i]) used.push_back(outputs[i]);
    }
    if (used.empty()) {
      EXPECT_TRUE(grads[0].isNone());
      EXPECT_FALSE(got.defined());
      continue;
    }
    at::cat(used, 1).backward(used.size() == 2 ? at::cat({g, g}, 1) : g);
    EXPECT_TRUE(at::equal(grads[0].toTensor(), x.grad()));
    EXPECT_TRUE(at::equal(got, take({weight})[0]));
  }
}

// Added on main: test_stage_backward_input with inputs that are no tensors, or that are not used.
TEST_F(BackwardCatalogue, StageBackwardInputIgnoresNonTensorInputs) {
  Stage stage(StageId(0), 1,
              stage_body([this](const at::Tensor& x, int64_t n, const std::string& mode,
                                const at::Tensor& unused, const at::Tensor& ids) {
                static_cast<void>(unused);
                EXPECT_EQ(mode, "mean");
                return mlp_.forward(x).mul(n).index_select(0, ids);
              }));
  const at::Tensor ids = at::arange(5, at::kLong);
  stage.forward(kFirst, {{x_.detach().requires_grad_(true), 3, "mean",
                          random({2}, 1).requires_grad_(true), ids},
                         {}});
  const at::Tensor g = random({5, 7}, 30);
  const std::vector<c10::IValue> grads = stage.backward_input(kFirst, {g});
  ASSERT_EQ(grads.size(), 5U);
  const at::Tensor x = x_.detach().requires_grad_(true);
  mlp_.forward(x).mul(3).index_select(0, ids).backward(g);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), x.grad()));
  for (std::size_t i = 1; i < 5; ++i) EXPECT_TRUE(grads[i].isNone()) << i;
  const std::vector<at::Tensor> expected = take(mlp_.parameters);
  stage.backward_weight(kFirst);
  expect_same_bits(take(mlp_.parameters), expected);
}

// Added on main: an intermediate node with several outputs, each with its own gradient.
TEST_F(BackwardCatalogue, StageBackwardWeightMultiOutputIntermediate) {
  const at::Tensor weight = random({9, 7}, 40).requires_grad_(true);
  auto body = [weight](const at::Tensor& x) {
    const std::vector<at::Tensor> parts = at::linear(x, weight).unbind(1);
    at::Tensor sum = parts[0];
    for (std::size_t i = 1; i < parts.size(); ++i) {
      sum = sum.add(parts[i].mul(static_cast<double>(i)));
    }
    return sum;
  };
  Stage stage(StageId(0), 1, stage_body(body));
  stage.forward(kFirst, {{x_.detach().requires_grad_(true)}, {}});
  const at::Tensor g = random({5}, 41);
  const std::vector<c10::IValue> grads = stage.backward_input(kFirst, {g});
  stage.backward_weight(kFirst);
  const at::Tensor got = take({weight})[0];
  const at::Tensor x = x_.detach().requires_grad_(true);
  body(x).backward(g);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), x.grad()));
  EXPECT_TRUE(at::equal(got, take({weight})[0]));
}

// Added on main: a weight that is used at several places on one path.
TEST_F(BackwardCatalogue, StageBackwardWeightSharedWeights) {
  const at::Tensor weight = random({7, 7}, 50).requires_grad_(true);
  const at::Tensor bias = random({7}, 51).requires_grad_(true);
  auto body = [weight, bias](const at::Tensor& x) {
    at::Tensor y = at::sin(at::linear(x, weight, bias));
    y = at::sin(at::linear(y, weight, bias));
    return at::linear(y, weight.t());
  };
  Stage stage(StageId(0), 1, stage_body(body));
  stage.forward(kFirst, {{x_.detach().requires_grad_(true)}, {}});
  const at::Tensor g = random({5, 7}, 52);
  const std::vector<c10::IValue> grads = stage.backward_input(kFirst, {g});
  stage.backward_weight(kFirst);
  const std::vector<at::Tensor> got = take({weight, bias});
  const at::Tensor x = x_.detach().requires_grad_(true);
  body(x).backward(g);
  EXPECT_TRUE(at::equal(grads[0].toTensor(), x.grad()));
  expect_same_bits(got, take({weight, bias}));
}

}  // namespace
}  // namespace stagecraft
