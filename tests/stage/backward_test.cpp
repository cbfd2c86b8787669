#include "stagecraft/stage/backward.h"

#include <functional>
#include <span>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/chunk.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/layer_norm.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/ones_like.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/relu.h>
#include <ATen/ops/softmax.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/custom_function.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/memory_meter.h"

namespace stagecraft {
namespace {

using Tensors = std::vector<at::Tensor>;

at::Tensor backward_weight(std::vector<int64_t> shape) {
  return at::randn(shape).requires_grad_();
}

// A function of inputs and weights with several outputs, differentiated in each of the three ways.
struct BackwardCase {
  std::string name;
  Tensors inputs;
  Tensors weights;
  std::function<Tensors(const Tensors& inputs, const Tensors& weights)> forward;
};

struct Gradients {
  Tensors inputs;
  Tensors weights;
};

Tensors take_weight_grads(const Tensors& weights) {
  Tensors grads;
  for (const at::Tensor& w : weights) {
    grads.push_back(w.grad());
    w.mutable_grad().reset();
  }
  return grads;
}

std::vector<StageInput> enter(const Tensors& tensors) {
  std::vector<StageInput> inputs;
  for (const at::Tensor& tensor : tensors) inputs.emplace_back(tensor);
  return inputs;
}

std::vector<GradRoot> roots_of(const Tensors& outputs) {
  std::vector<GradRoot> roots;
  for (const at::Tensor& output : outputs) {
    roots.push_back({grad_edge_of(output), at::ones_like(output)});
  }
  return roots;
}

std::vector<StageInput> run_forward(const BackwardCase& c, std::vector<GradRoot>& roots) {
  std::vector<StageInput> inputs = enter(c.inputs);
  Tensors seen;
  for (StageInput& input : inputs) {
    seen.push_back(input.tensor());
    input.release_tensor();
  }
  roots = roots_of(c.forward(seen, c.weights));
  return inputs;
}

Gradients with_full(const BackwardCase& c) {
  std::vector<GradRoot> roots;
  const std::vector<StageInput> inputs = run_forward(c, roots);
  backward_full(std::move(roots));
  Gradients grads;
  for (const StageInput& input : inputs) grads.inputs.push_back(input.take_grad());
  grads.weights = take_weight_grads(c.weights);
  return grads;
}

Gradients with_split(const BackwardCase& c) {
  std::vector<GradRoot> roots;
  const std::vector<StageInput> inputs = run_forward(c, roots);
  WeightWork work = backward_input(std::move(roots), inputs);
  Gradients grads;
  for (const StageInput& input : inputs) grads.inputs.push_back(input.take_grad());
  for (const at::Tensor& w : c.weights) EXPECT_FALSE(w.grad().defined()) << "a weight after I";
  backward_weight(std::move(work));
  grads.weights = take_weight_grads(c.weights);
  return grads;
}

// Plain autograd, no border anywhere.
Gradients plain(const BackwardCase& c) {
  Tensors leaves;
  for (const at::Tensor& input : c.inputs) {
    leaves.push_back(input.detach().requires_grad_());
  }
  Tensors seen;
  for (const at::Tensor& leaf : leaves) seen.push_back(leaf.view_as(leaf));
  at::Tensor sum;
  for (const at::Tensor& output : c.forward(seen, c.weights)) {
    if (!output.requires_grad()) continue;
    sum = sum.defined() ? sum + output.sum() : output.sum();
  }
  sum.backward();
  Gradients grads;
  for (const at::Tensor& leaf : leaves) grads.inputs.push_back(leaf.grad());
  grads.weights = take_weight_grads(c.weights);
  return grads;
}

void expect_same_grads(const Tensors& expected, const Tensors& actual, const std::string& what) {
  ASSERT_EQ(expected.size(), actual.size());
  for (std::size_t i = 0; i < expected.size(); ++i) {
    ASSERT_EQ(expected[i].defined(), actual[i].defined()) << what << ' ' << i;
    if (!expected[i].defined()) continue;
    EXPECT_TRUE(at::equal(expected[i], actual[i])) << what << ' ' << i;
  }
}

// A custom function with a gradient for its weight only where that is asked for.
struct Scale : torch::autograd::Function<Scale> {
  static at::Tensor forward(torch::autograd::AutogradContext* ctx, const at::Tensor& x,
                            const at::Tensor& w) {
    ctx->save_for_backward({x, w});
    return x * w;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* ctx,
                                                 torch::autograd::variable_list grads) {
    const auto saved = ctx->get_saved_variables();
    at::Tensor dx, dw;
    if (ctx->needs_input_grad(0)) dx = grads[0] * saved[1];
    if (ctx->needs_input_grad(1)) dw = (grads[0] * saved[0]).sum_to_size(saved[1].sizes());
    return {dx, dw};
  }
};

std::vector<BackwardCase> cases() {
  std::vector<BackwardCase> all;
  auto add = [&](std::string name, Tensors inputs, Tensors weights, auto forward) {
    all.push_back({std::move(name), std::move(inputs), std::move(weights), forward});
  };
  const at::Tensor x = at::randn({5, 7});
  add("mlp", {x}, {backward_weight({7, 7}), backward_weight({7}), backward_weight({7, 3})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{at::tanh(at::addmm(w[1], in[0], w[0])).mm(w[2])};
      });
  add("weight used three times", {x}, {backward_weight({7, 7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{at::tanh(at::tanh(in[0].mm(w[0])).mm(w[0])).mm(w[0])};
      });
  add("weight norm", {x}, {backward_weight({7, 7}), backward_weight({7, 1})},
      [](const Tensors& in, const Tensors& w) {
        const at::Tensor normed = w[1] * w[0] / w[0].norm(2, {1}, true);
        return Tensors{at::relu(at::linear(in[0], normed)).mm(normed)};
      });
  add("several outputs of a node", {x}, {backward_weight({7, 9})},
      [](const Tensors& in, const Tensors& w) {
        const auto parts = in[0].mm(w[0]).chunk(3, 1);
        return Tensors{at::softmax(parts[0], 1) * parts[1], parts[2]};
      });
  add("parts of a weight", {x}, {backward_weight({9, 7})}, [](const Tensors& in, const Tensors& w) {
    const auto parts = w[0].chunk(3, 0);
    return Tensors{at::linear(in[0], parts[0]) * at::linear(in[0], parts[2])};
  });
  add("views and in place", {x}, {backward_weight({7}), backward_weight({5, 2})},
      [](const Tensors& in, const Tensors& w) {
        at::Tensor h = in[0] * 2;
        h.narrow(1, 0, 2).add_(w[1]);
        h.mul_(w[0]);
        return Tensors{h.t().contiguous().tanh_()};
      });
  add("in place on the input", {x}, {backward_weight({7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{in[0].view({5, 7}) * w[0]};
      });
  add("an input that is not used", {x, at::randn({3})}, {backward_weight({7})},
      [](const Tensors& in, const Tensors& w) { return Tensors{in[0] * w[0]}; });
  add("a weight that no input reaches", {x}, {backward_weight({7}), backward_weight({4})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{in[0] * w[0], w[1].exp()};
      });
  add("an output without gradient", {x}, {backward_weight({7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{in[0] * w[0], in[0].detach() + 1, in[0].argmax(1)};
      });
  add("no weights", {x}, {},
      [](const Tensors& in, const Tensors&) { return Tensors{in[0].exp()}; });
  add("identity", {x}, {}, [](const Tensors& in, const Tensors&) { return Tensors{in[0]}; });
  add("layer norm", {x}, {backward_weight({7}), backward_weight({7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{at::layer_norm(in[0], {7}, w[0], w[1])};
      });
  add("a custom function", {x}, {backward_weight({7}), backward_weight({7, 7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{Scale::apply(in[0].mm(w[1]), w[0])};
      });
  add("a weight as an output", {x}, {backward_weight({7, 7})},
      [](const Tensors& in, const Tensors& w) {
        return Tensors{in[0].mm(w[0]), w[0]};
      });
  return all;
}

TEST(Backward, AllThreeWaysGiveTheBitsOfPlainAutograd) {
  for (const BackwardCase& c : cases()) {
    SCOPED_TRACE(c.name);
    const Gradients expected = plain(c);
    const Gradients full = with_full(c);
    const Gradients split = with_split(c);
    expect_same_grads(expected.inputs, full.inputs, "B, input");
    expect_same_grads(expected.weights, full.weights, "B, weight");
    expect_same_grads(expected.inputs, split.inputs, "I, input");
    expect_same_grads(expected.weights, split.weights, "W, weight");
  }
}

TEST(Backward, InputsThatNeedNoGradientLeaveAllToW) {
  const at::Tensor w = backward_weight({3, 3});
  std::vector<GradRoot> roots = roots_of({at::randn({2, 3}).mm(w)});
  WeightWork work = backward_input(std::move(roots), std::span<const StageInput>());
  EXPECT_FALSE(work.empty());
  EXPECT_FALSE(w.grad().defined());
  backward_weight(std::move(work));
  EXPECT_TRUE(w.grad().defined());
}

TEST(Backward, HooksOnTensorsRunOnceAndTheirResultCounts) {
  for (const bool is_split : {false, true}) {
    const at::Tensor w = at::ones_like(at::randn({3, 3})).requires_grad_();
    int calls = 0;
    int leaf_calls = 0;
    w.register_hook([&](const at::Tensor& grad) {
      ++leaf_calls;
      return grad;
    });
    const StageInput input(at::ones_like(at::randn({2, 3})));
    const at::Tensor h = input.tensor().mm(w);
    h.register_hook([&](const at::Tensor& grad) {
      ++calls;
      return grad * 2;
    });
    const at::Tensor y = h.mm(w);
    h.retain_grad();
    std::vector<GradRoot> roots = roots_of({y});
    if (is_split) {
      backward_weight(backward_input(std::move(roots), std::span(&input, 1)));
    } else {
      backward_full(std::move(roots));
    }
    EXPECT_EQ(calls, 1) << is_split;
    EXPECT_EQ(leaf_calls, 1) << is_split;
    // dh = (1 * w^T) * 2 = 6; dx = 18; dw = h^T * 1 + x^T dh = 2*3 + 2*6.
    EXPECT_TRUE(at::equal(h.grad(), at::ones_like(h) * 6)) << is_split;
    EXPECT_TRUE(at::equal(input.take_grad(), at::ones_like(at::randn({2, 3})) * 18)) << is_split;
    EXPECT_TRUE(at::equal(w.grad(), at::ones_like(w) * 18)) << is_split;
  }
}

TEST(Backward, AGradientOfAnotherShapeIsRefused) {
  const at::Tensor w = backward_weight({3});
  std::vector<GradRoot> roots;
  roots.push_back({grad_edge_of(w * 2), at::randn({4})});
  try {
    backward_full(std::move(roots));
    FAIL();
  } catch (const MetadataError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr("expected [3], got Tensor[4] float32"));
  }
}

TEST(Backward, NothingIsKeptAfterIThatWDoesNotRead) {
  MemoryMeter meter(1);
  const MemoryMeter::Scope scope(meter, 0);
  const at::Tensor w = backward_weight({64, 64});
  const at::Tensor x = at::randn({32, 64});
  const int64_t before = meter.current(0);
  const int64_t activation = 32 * 64 * 4;
  WeightWork work;
  {
    const StageInput input(x);
    at::Tensor h = input.tensor().mm(w);
    // Six operators that each save their result, none with a weight.
    for (int i = 0; i < 6; ++i) h = at::tanh(h);
    std::vector<GradRoot> roots = roots_of({h});
    h.reset();
    EXPECT_EQ(meter.current(0) - before,
              7 * activation);  // six results and the gradient to start from
    work = backward_input(std::move(roots), std::span(&input, 1));
    input.take_grad();
  }
  // The product's input is x itself; what is left is the gradient that W starts from.
  EXPECT_EQ(meter.current(0) - before, activation);
  backward_weight(std::move(work));
  EXPECT_EQ(meter.current(0) - before, 64 * 64 * 4);  // the weight's gradient
}

TEST(StageInput, SharesDataAndVersionAndAllowsInPlaceOperators) {
  const at::Tensor source = at::randn({4});
  const StageInput input(source);
  EXPECT_EQ(input.tensor().data_ptr(), source.data_ptr());
  EXPECT_FALSE(input.tensor().is_leaf());
  const auto before = source._version();
  input.tensor().mul_(2);
  EXPECT_GT(source._version(), before);
}

}  // namespace
}  // namespace stagecraft
