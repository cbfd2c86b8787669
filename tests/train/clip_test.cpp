#include "stagecraft/train/clip.h"

#include <limits>

#include <ATen/ops/allclose.h>
#include <ATen/ops/full.h>
#include <ATen/ops/randn.h>
#include <torch/nn/utils/clip_grad.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {

namespace {

ModelState clip_state_of(const char* name, const at::Tensor& grad, int copies = 1) {
  ModelState state;
  state.name = name;
  for (int i = 0; i < copies; ++i) {
    at::Tensor tensor = at::randn(grad.sizes()).set_requires_grad(true);
    tensor.mutable_grad() = grad.clone();
    state.copies.push_back(tensor);
  }
  return state;
}

}  // namespace

TEST(Clip, DoesWhatTorchDoes) {
  at::manual_seed(2);
  const std::vector<ModelState> states = {clip_state_of("a", at::randn({5, 3})),
                                          clip_state_of("b", at::randn({9}))};
  std::vector<at::Tensor> theirs;
  for (const ModelState& state : states) {
    at::Tensor tensor = state.tensor().detach().clone().set_requires_grad(true);
    tensor.mutable_grad() = state.tensor().grad().clone();
    theirs.push_back(tensor);
  }
  const double expected = torch::nn::utils::clip_grad_norm_(theirs, 0.7);
  const double norm = grad_norm(states);
  EXPECT_NEAR(norm, expected, 1e-6);
  clip_grads(states, norm, 0.7);
  for (std::size_t i = 0; i < states.size(); ++i) {
    EXPECT_TRUE(at::allclose(states[i].tensor().grad(), theirs[i].grad(), 1e-6, 1e-7));
  }
  EXPECT_NEAR(grad_norm(states), 0.7, 1e-5);
  clip_grads(states, grad_norm(states), 5);  // below: nothing is done
  EXPECT_NEAR(grad_norm(states), 0.7, 1e-5);
}

TEST(Clip, CountsTiedWeightsOnceAndScalesEachCopy) {
  const std::vector<ModelState> states = {clip_state_of("tied", at::full({4}, 3.0), 2)};
  EXPECT_DOUBLE_EQ(grad_norm(states), 6);
  clip_grads(states, 6, 3);
  for (const at::Tensor& copy : states[0].copies) {
    EXPECT_NEAR(copy.grad()[0].item<double>(), 1.5, 1e-6);
  }
}

TEST(Clip, NamesTheGradientThatIsNoNumber) {
  std::vector<ModelState> states = {clip_state_of("good", at::randn({2})),
                                    clip_state_of("bad", at::randn({2}))};
  EXPECT_EQ(find_infinite_grad(states), nullptr);
  states[1].tensor().grad()[1] = std::numeric_limits<double>::infinity();
  const ModelState* const bad = find_infinite_grad(states);
  ASSERT_EQ(bad, &states[1]);
  EXPECT_TRUE(describe_infinite_grad(bad->name).starts_with("the gradient of bad has elements"));
  EXPECT_ERROR(clip_grads(states, 1, 0), ArgumentError, "norm above 0 to clip at, got 0");
}

// Pieces begin at blocks, so the norm has the same bits however a gradient is divided.
TEST(Clip, TheNormOfBlocksDoesNotDependOnThePieces) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16, at::kDouble}) {
    const at::Tensor grad = at::randn({5000}).to(type);
    const at::Tensor whole = norm_of_blocks({block_squares(grad)});
    EXPECT_NEAR(whole.item<double>(), grad.to(at::kDouble).norm().item<double>(), 1e-4);
    for (int64_t cut = 256; cut < 5000; cut += 256) {
      EXPECT_TRUE(norm_of_blocks({block_squares(grad.narrow(0, 0, cut)),
                                  block_squares(grad.narrow(0, cut, 5000 - cut))})
                      .equal(whole));
    }
  }
}

}  // namespace stagecraft
