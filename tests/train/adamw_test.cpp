#include "stagecraft/train/adamw.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/allclose.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/randn.h>
#include <torch/optim/adamw.h>

#include "stagecraft/base/error.h"
#include "tests/support/expect_error.h"

namespace stagecraft {

namespace {

ModelState adam_state_of(const char* name, std::vector<at::Tensor> copies) {
  ModelState state;
  state.name = name;
  state.copies = std::move(copies);
  return state;
}

at::Tensor leaf(at::IntArrayRef sizes) {
  return at::randn(sizes).set_requires_grad(true);
}

}  // namespace

TEST(AdamW, DoesWhatTorchDoes) {
  at::manual_seed(1);
  std::vector<at::Tensor> ours = {leaf({5, 3}), leaf({7}), leaf({2, 3, 4})};
  std::vector<at::Tensor> theirs;
  for (const at::Tensor& tensor : ours) {
    theirs.push_back(tensor.detach().clone().set_requires_grad(true));
  }
  AdamW optimizer(
      {adam_state_of("a", {ours[0]}), adam_state_of("b", {ours[1]}), adam_state_of("c", {ours[2]})},
      {.beta1 = 0.8, .beta2 = 0.97, .epsilon = 1e-7, .weight_decay = 0.3});
  const auto options = [](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(
        torch::optim::AdamWOptions(0).betas({0.8, 0.97}).eps(1e-7).weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(std::vector<at::Tensor>{theirs[0], theirs[2]}, options(0.3));
  groups.emplace_back(std::vector<at::Tensor>{theirs[1]}, options(0));
  torch::optim::AdamW reference(groups);
  for (int step = 0; step < 5; ++step) {
    const double rate = 0.1 / (step + 1);
    for (auto& group : reference.param_groups()) group.options().set_lr(rate);
    for (std::size_t i = 0; i < ours.size(); ++i) {
      // The second has no gradient in one of the steps.
      if (i == 1 && step == 2) continue;
      // The gradient of the first parameter has a different layout than the parameter.
      at::Tensor grad = at::randn(ours[i].sizes());
      theirs[i].mutable_grad() = grad.clone();
      ours[i].mutable_grad() = i == 0 ? grad.t().contiguous().t() : grad;
    }
    optimizer.step(rate);
    reference.step();
    optimizer.zero_grad();
    reference.zero_grad(true);
    for (const at::Tensor& tensor : ours) EXPECT_FALSE(tensor.grad().defined());
  }
  for (std::size_t i = 0; i < ours.size(); ++i) {
    EXPECT_TRUE(at::allclose(ours[i], theirs[i], 1e-6, 1e-6)) << i;
  }
  EXPECT_EQ(optimizer.moments()[0].updates.item<double>(), 5);
  EXPECT_EQ(optimizer.moments()[1].updates.item<double>(), 4);
}

TEST(AdamW, KeepsCopiesTheSame) {
  const at::Tensor first = leaf({4, 4});
  const at::Tensor second = first.detach().clone().set_requires_grad(true);
  AdamW optimizer({adam_state_of("tied", {first, second})});
  for (int step = 0; step < 3; ++step) {
    const at::Tensor grad = at::randn({4, 4});
    first.mutable_grad() = grad;
    second.mutable_grad() = grad.clone();
    optimizer.step(0.1);
  }
  EXPECT_TRUE(at::equal(first, second));
}

// The copies are what a float32 parameter would be with the same gradients; the parameters are the
// copies, rounded.
TEST(AdamW, UpdatesMasterWeights) {
  at::manual_seed(1);
  const at::Tensor half = at::randn({30, 10}).to(at::kBFloat16).set_requires_grad(true);
  const at::Tensor other = leaf({5});
  const at::Tensor whole = half.detach().to(at::kFloat).set_requires_grad(true);
  AdamW optimizer({adam_state_of("half", {half}), adam_state_of("other", {other})},
                  {.master_weights = true});
  AdamW reference({adam_state_of("whole", {whole})});
  EXPECT_FALSE(optimizer.moments()[1].master.defined());
  for (int step = 0; step < 6; ++step) {
    half.mutable_grad() = at::randn({30, 10}).to(at::kBFloat16);
    whole.mutable_grad() = half.grad().to(at::kFloat);
    if (step == 4) {
      // Written between two updates.
      const at::NoGradGuard no_grad;
      half[3].fill_(0.5);
      whole[3].fill_(0.5);
    }
    optimizer.step(1e-4);
    reference.step(1e-4);
    const AdamW::Moments& moments = optimizer.moments()[0];
    EXPECT_TRUE(at::equal(moments.master, whole)) << step;
    EXPECT_TRUE(at::equal(half, whole.to(at::kBFloat16))) << step;
    EXPECT_TRUE(at::equal(moments.average, reference.moments()[0].average)) << step;
  }
}

TEST(AdamW, LeavesFrozenParametersAlone) {
  const at::Tensor frozen = at::randn({3});
  AdamW optimizer({adam_state_of("frozen", {frozen}), adam_state_of("trained", {leaf({3})})});
  ASSERT_EQ(optimizer.states().size(), 1U);
  EXPECT_EQ(optimizer.states()[0].name, "trained");
}

TEST(AdamW, RefusesWhatMakesNoSense) {
  EXPECT_ERROR(AdamW({}, {.beta1 = 1}), ArgumentError, "betas from 0 to below 1, got 1");
  EXPECT_ERROR(AdamW({}, {.epsilon = -1}), ArgumentError, "at least 0, got -1 and 0.1");
}

}  // namespace stagecraft
