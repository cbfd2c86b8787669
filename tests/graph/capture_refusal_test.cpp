#include <algorithm>
#include <functional>
#include <memory>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorIndexing.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <c10/util/intrusive_ptr.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/generated/variable_factories.h>
#include <torch/csrc/autograd/variable.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

struct Doubled : torch::autograd::Function<Doubled> {
  static Tensor forward(torch::autograd::AutogradContext*, const Tensor& x) { return x * 2; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 3};
  }
};

Graph capture_of(const std::function<c10::IValue(const Tensor&)>& fn, int64_t rows = 4,
                 CaptureOptions options = {}) {
  const Tensor w = torch::ones({6}).requires_grad_();
  const StageBody model = {
      [&](const Args& args, const Kwargs&) { return fn(args[0].toTensor() * w); },
      {{"layers.3.weight", w}},
      {}};
  return capture(model, {{at::arange(rows * 6, at::kFloat).view({rows, 6})}, {}}, options);
}

TEST(CaptureRefuses, ValuesReadBackToTheHost) {
  EXPECT_ERROR(capture_of([](const Tensor& x) { return x * x.sum().item<float>(); }), CaptureError,
               "aten::item in or after module layers.3: it reads a value back to the host");
  EXPECT_ERROR(capture_of([](const Tensor& x) -> c10::IValue {
                 const auto region = scope("router");
                 return x.max().is_nonzero() ? x : x + 1;
               }),
               CaptureError, "aten::is_nonzero in router in or after module layers.3");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) -> c10::IValue { return x.equal(x * 1) ? x : x + 1; }),
      CaptureError, "aten::equal in or after module layers.3");
}

TEST(CaptureRefuses, CustomFunctionsByName) {
  EXPECT_ERROR(capture_of([](const Tensor& x) { return Doubled::apply(x) + 1; }), CaptureError,
               "the custom autograd function stagecraft::(anonymous namespace)::Doubled");
  EXPECT_ERROR(capture_of([](const Tensor& x) { return Doubled::apply(x); }), CaptureError,
               "the output of the model");
  const c10::NoGradGuard no_grad;  // capture looks at gradients all the same
  EXPECT_ERROR(capture_of([](const Tensor& x) { return Doubled::apply(x); }), CaptureError,
               "Doubled");
}

TEST(CaptureRefuses, HooksSetInside) {
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor y = x + 1;
                 y.register_hook([](const Tensor& grad) { return grad * 2; });
                 return y * 2;
               }),
               CaptureError,
               "a hook was registered on a result of AddBackward1 inside the forward");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) {
        const Tensor y = x + 1;
        const Tensor z = y * 2;
        y.register_hook([](const Tensor& grad) { return grad * 2; });  // after its last use
        return z;
      }),
      CaptureError, "a hook was registered on");
}

TEST(CaptureRefuses, HooksSetOnParameters) {
  const Tensor w = torch::ones({6}).requires_grad_();
  int calls = 0;
  w.register_hook([&](const Tensor& grad) {
    ++calls;
    return grad;
  });
  const StageBody model = {[&](const Args& args, const Kwargs&) -> c10::IValue {
                             w.register_hook([](const Tensor& grad) { return grad * 2; });
                             return args[0].toTensor() * w;
                           },
                           {{"w", w}}};
  EXPECT_ERROR(capture(model, {{torch::ones({4, 6})}, {}}), CaptureError,
               "a hook was registered on %w inside the forward");
  // That hook was removed. The earlier one was not, and it was not called.
  EXPECT_EQ(calls, 0);
  torch::autograd::backward({w.sum()});
  EXPECT_EQ(w.grad().sum().item<float>(), 6.F);
  EXPECT_EQ(calls, 1);
}

/// A node written by hand, as some libraries have them.
struct Tripling : torch::autograd::Node {
  torch::autograd::variable_list apply(torch::autograd::variable_list&& grads) override {
    return {grads[0] * 3};
  }
};

/// Versions of torch own nodes in different ways.
template <typename Pointer>
Pointer make_node() {
  if constexpr (std::is_same_v<Pointer, std::shared_ptr<torch::autograd::Node>>) {
    return Pointer(new Tripling());
  } else {
    return c10::make_intrusive<Tripling>();
  }
}

TEST(CaptureRefuses, NodesWrittenByHand) {
  auto tripled = [](const Tensor& x) {
    Tensor y;
    {
      const c10::NoGradGuard no_grad;
      y = x * 3;
    }
    auto node = make_node<decltype(torch::autograd::Edge::function)>();
    node->add_next_edge(torch::autograd::impl::gradient_edge(x));
    torch::autograd::set_history(y, node);
    return y;
  };
  EXPECT_ERROR(capture_of([&](const Tensor& x) { return tripled(x) + 1; }), CaptureError,
               "Tripling would lose its backward");
  EXPECT_ERROR(capture_of(tripled), CaptureError, "Tripling would lose its backward");
}

TEST(CaptureRefuses, NumbersReadFromShapesThatDependOnElements) {
  const std::string message = "read from a shape that depends on elements";
  // Each row of the example has the same number of such elements, so that they seem to follow B.
  EXPECT_ERROR(
      capture_of([](const Tensor& x) { return at::arange(at::nonzero(x >= 0).size(0)) + x.sum(); }),
      CaptureError, "arange (aten::arange): it depends on a number that was " + message);
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor chosen = x.masked_select(x >= 0);
                 return chosen.view({chosen.size(0) / 6, 6});
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) -> c10::IValue {
                 const Tensor chosen = x.index({x.sum(1) >= 0});
                 return chosen.size(0) > 2 ? chosen.sum() : x.sum();
               }),
               CaptureError, message);
  // A mean over the chosen elements of each row. All rows must have the same number of them.
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor mask = torch::arange(6).lt(3).expand_as(x);
                 const Tensor y = x.index({mask}).reshape({x.size(0), -1, 1});
                 return y.sum(1) / y.size(1);
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor places = (x.sum(1) >= 0).nonzero().squeeze();
                 return x.index_select(0, places).sum(0) / places.size(0);
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) -> c10::IValue {
                 const Tensor places = (x.sum(1) >= 0).nonzero().squeeze(1);
                 return places.size(0) == 0 ? x.sum(0) : x.index_select(0, places).mean(0);
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor at = torch::full({1}, 2, at::kLong);
                 const auto parts = x.tensor_split(at);
                 return parts[0].sum(0) / parts[0].size(0);
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor lengths = torch::full({x.size(0)}, 6, at::kLong);
                 const Tensor packed =
                     std::get<0>(at::_pack_padded_sequence(x.unsqueeze(2), lengths, true));
                 return packed.sum(0) / packed.size(0);
               }),
               CaptureError, message);
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor mask = torch::arange(6).lt(3).expand_as(x);
                 return x.index({mask}).view({x.size(0), 3}).sum(1);
               }),
               CaptureError, "the model fails there if fewer or more elements are chosen");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const auto found = at::_unique(x);
                 return x.sum() * std::get<0>(found).size(0);
               }),
               CaptureError, message);
}

/// One autocast region of its own.
Tensor cast_mm(const Tensor& x, const Tensor& w) {
  at::autocast::set_autocast_enabled(c10::kCPU, true);
  at::autocast::increment_nesting();
  const Tensor y = x.mm(w);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(c10::kCPU, false);
  return y;
}

TEST(CaptureRefuses, OtherGradients) {
  // Cast once in each region, the weight gets its gradients one by one; cast once, their sum.
  const Tensor w = (torch::arange(256, at::kFloat).view({16, 16}).sin() * 0.37).requires_grad_();
  const StageBody model = {[&](const Args& args, const Kwargs&) -> c10::IValue {
                             return cast_mm(cast_mm(args[0].toTensor(), w).tanh(), w);
                           },
                           {{"w", w}}};
  EXPECT_ERROR(capture(model, {{torch::arange(64, at::kFloat).cos().view({4, 16})}, {}}),
               CaptureError, "the graph does not give the model's gradient of w");
  EXPECT_FALSE(w.grad().defined());
}

TEST(CaptureRefuses, ThingsThatAGraphCannotHold) {
  const StageBody unnamed = {[](const Args& args, const Kwargs&) { return args[0]; },
                             {{"no name", torch::ones({2})}}};
  EXPECT_ERROR(capture(unnamed, {{torch::ones({2})}, {}}), CaptureError,
               "'no name' is not a valid name for a parameter or buffer");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const auto region = scope("two words");
                 return x + 1;
               }),
               CaptureError, "scope: expected letters, digits, '_' and '.', got 'two words'");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 return capture_of([](const Tensor& y) { return y; }).parts().nodes.empty() ? x
                                                                                            : x + 1;
               }),
               CaptureError, "a capture is running on this thread already");
  EXPECT_ERROR(capture_of([](const Tensor& x) -> c10::IValue {
                 static int calls = 0;
                 return ++calls % 2 == 0 ? c10::IValue(x) : tree::tuple({x, x});
               }),
               CaptureError, "the model returns a different structure at different sizes");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 static int calls = 0;
                 // The example twice, one more row, the third size, one row.
                 require<ArgumentError>(++calls < 6, "no more");
                 return x + 1;
               }),
               CaptureError, "the model fails when it runs again: no more");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 Tensor y = torch::empty({6});
                 return y.copy_(x.sum(0)).add(torch::empty({6}).set_(y.storage()));
               }),
               CaptureError, "aten::set_");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 return x.size(0) > 4 ? (x + 1).to(at::kDouble) : (x + 1).to(at::kFloat);
               }),
               CaptureError, "argument 'dtype' cannot follow the sizes");
}

TEST(CaptureRefuses, BuffersThatAreWrittenByPointer) {
  const Tensor count = torch::zeros({2});
  const StageBody model = {[&](const Args& args, const Kwargs&) -> c10::IValue {
                             count.mutable_data_ptr<float>()[0] += 1;
                             return args[0].toTensor() + 1;
                           },
                           {},
                           {{"count", count}}};
  EXPECT_ERROR(capture(model, {{torch::ones({4})}, {}}), CaptureError,
               "the graph leaves different elements in %count than the model");
  EXPECT_EQ(count.sum().item<float>(), 0.F);
}

TEST(CaptureRefuses, SizesThatAreComparedWithEachOther) {
  const CaptureOptions two = {.sizes = {{.name = "S", .places = {{"args[0]", 0}}},
                                        {.name = "T", .places = {{"args[1]", 0}}}}};
  const Arguments example = {{torch::ones({4, 2}), torch::ones({6, 2})}, {}};
  auto refuse = [&](const std::function<c10::IValue(const Tensor&, const Tensor&)>& fn) {
    const StageBody model = {[&](const Args& args, const Kwargs&) {
      return fn(args[0].toTensor(), args[1].toTensor());
    }};
    EXPECT_THROW(capture(model, example, two), CaptureError);
  };
  refuse([](const Tensor& x, const Tensor& y) -> c10::IValue {
    return torch::arange(std::max(x.size(0), y.size(0))) + x.sum() + y.sum();
  });
  refuse([](const Tensor& x, const Tensor& y) -> c10::IValue {
    const Tensor scores = x.mm(y.t());
    return x.size(0) == y.size(0) ? scores.tril() : scores;
  });
}

TEST(CaptureRefuses, EqualOfTwoTensors) {
  auto ask = [](const Tensor& x) -> c10::IValue { return at::equal(x, x + 1) ? x : x * 2; };
  EXPECT_ERROR(capture_of(ask), CaptureError, "set CaptureOptions::equal_by_identity");
  EXPECT_EQ(capture_of(ask, 4, {.equal_by_identity = true}).parts().nodes.back().op.name,
            "aten::mul");
  const StageBody early = {[](const Args& args, const Kwargs&) -> c10::IValue {
    return args[0].toTensor().sum().item<double>();
  }};
  EXPECT_ERROR(capture(early, {{torch::ones({4})}, {}}), CaptureError,
               "aten::item before the first module that reads a parameter: it reads a value back");
}

TEST(CaptureRefuses, MemoryThatNoOperatorMade) {
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 const Tensor y = x + 1;
                 // A second view of the same memory, which the dispatcher does not see.
                 Tensor part = y.data();
                 part.unsafeGetTensorImpl()->set_sizes_and_strides(at::IntArrayRef{3},
                                                                   at::IntArrayRef{2});
                 return part * 2;
               }),
               CaptureError, "but was not made from it by an operator");
}

TEST(CaptureRefuses, ViewsThatAreSometimesCopies) {
  // Of one row a transposed view can be flattened without a copy; of several it cannot.
  EXPECT_ERROR(capture_of(
                   [](const Tensor& x) {
                     Tensor y = x + 1;
                     const Tensor flat = y.narrow(0, 0, x.size(0) - 3).t().reshape({-1});
                     flat.add_(1);
                     return y;
                   },
                   4),
               CaptureError, "it is a view at one size and a copy at a different one");
}

struct DoubledInPlace : torch::autograd::Function<DoubledInPlace> {
  static Tensor forward(torch::autograd::AutogradContext* context, const Tensor& x) {
    x.mul_(2);
    context->mark_dirty({x});
    return x;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list grads) {
    return {grads[0] * 100};
  }
};

TEST(CaptureRefuses, CustomFunctionsBehindAView) {
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 Tensor y = x * 1;
                 const Tensor view = y.view({-1});
                 DoubledInPlace::apply(y);
                 return view * 1;
               }),
               CaptureError, "DoubledInPlace");
}

TEST(CaptureRefuses, ElementsReadByPointer) {
  EXPECT_ERROR(capture_of([](const Tensor& x) { return x * x.const_data_ptr<float>()[1]; }),
               CaptureError, "the graph returns something different from the model");
}

TEST(CaptureRefuses, WhatDoesNotFollowTheSizes) {
  // Each fits two sizes and is wrong at a third, or fits none.
  EXPECT_ERROR(capture_of([](const Tensor& x) { return x.narrow(0, 0, x.size(0) / 2); }),
               CaptureError, "argument 'length' cannot follow the sizes");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) { return torch::arange(x.size(0) * x.size(0)) + x.sum(); }),
      CaptureError, "cannot follow the sizes");
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 return at::constant_pad_nd(x, {0, 0, 0, (8 - x.size(0) % 8) % 8});
               }),
               CaptureError, "argument 'pad' cannot follow the sizes");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) { return x * (1.0 / static_cast<double>(x.size(0))); }),
      CaptureError,
      "argument 'other' cannot follow the sizes: at B = 4 it is 0.25, at B = 5 it is 0.2");
  EXPECT_ERROR(capture_of([](const Tensor& x) { return at::stack(x.unbind(0)); }), CaptureError,
               "unbind");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) -> c10::IValue { return x.size(0) > 4 ? x + 1 : x - 1; }),
      CaptureError,
      "the model calls different operators at different sizes: after mul (aten::mul.Tensor) comes "
      "aten::sub.Scalar at B = 4, aten::add.Scalar at B = 5");
  EXPECT_ERROR(
      capture_of([](const Tensor& x) -> c10::IValue { return x.size(0) > 6 ? x + 1 : x - 1; }),
      CaptureError, "the model calls different operators at different sizes");
  EXPECT_ERROR(capture_of([](const Tensor& x) -> c10::IValue {
                 return x +
                        torch::tensor(std::vector<float>(static_cast<std::size_t>(x.size(0)), 1.F))
                            .view({-1, 1});
               }),
               CaptureError, "constant");
}

TEST(CaptureRefuses, WhatWasComputedOutside) {
  const Tensor w = torch::ones({6}).requires_grad_();
  const Tensor history = w * 2;
  EXPECT_ERROR(capture_of([&](const Tensor& x) { return x + history; }), CaptureError,
               "computed from parameters outside of the model");
}

TEST(CaptureRefuses, ModelsThatWriteByPointer) {
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 Tensor y = x.detach().clone();
                 y.mutable_data_ptr<float>()[0] = 41;
                 return y + 1;
               }),
               CaptureError, "the graph returns something different from the model, in output");
}

TEST(CaptureRefuses, SizesThatTheExampleHasNot) {
  auto identity = [](const Tensor& x) { return x + 1; };
  auto with = [](SizeSpec spec) { return CaptureOptions{.sizes = {std::move(spec)}}; };
  EXPECT_ERROR(capture_of(identity, 4, with({.name = "B", .places = {{"args[1]", 0}}})),
               ArgumentError, "size B: there is no tensor at args[1]");
  EXPECT_ERROR(capture_of(identity, 4, with({.name = "B", .places = {{"args[0]", 2}}})),
               ArgumentError, "args[0] has 2 dimensions, got dimension 2");
  EXPECT_ERROR(
      capture_of(identity, 4, with({.name = "B", .places = {{"args[0]", 0}, {"args[0]", 1}}})),
      ArgumentError, "it is 6 at args[0], dimension 1, but 4 before");
  EXPECT_ERROR(capture_of(identity, 4, with({.name = "B", .probe = 5})), ArgumentError,
               "expected a probe other than 4 and 5");
  EXPECT_ERROR(capture_of(identity, 4,
                          {.sizes = {{.name = "B"}, {.name = "C", .places = {{"args[0]", 0}}}}}),
               ArgumentError, "args[0], dimension 0: expected one size, got B and C");
  EXPECT_ERROR(capture_of(identity, 4, {.sizes = std::vector<SizeSpec>(5)}), ArgumentError,
               "got B and B");
  EXPECT_ERROR(capture_of(identity, 0), ArgumentError, "expected at least 1 in the example, got 0");
}

TEST(CaptureRefuses, ModelsThatFailAtOtherSizes) {
  EXPECT_ERROR(capture_of([](const Tensor& x) {
                 return x.view({4, 6});
               }),
               CaptureError, "the model fails at B = 5: shape '[4, 6]' is invalid");
}

TEST(CaptureRefuses, LeavesNothingBehind) {
  const Tensor w = torch::ones({6}).requires_grad_();
  const Tensor count = torch::zeros({});
  const StageBody model = {[&](const Args& args, const Kwargs&) -> c10::IValue {
                             count.add_(1);
                             const Tensor x = at::dropout(args[0].toTensor() * w, 0.5, true);
                             return x.sum().item<double>();
                           },
                           {{"w", w}},
                           {{"count", count}}};
  const Tensor random = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  EXPECT_ERROR(capture(model, {{torch::ones({4, 6})}, {}}), CaptureError, "aten::item");
  EXPECT_EQ(count.item<float>(), 0.F);
  EXPECT_TRUE(at::globalContext().defaultGenerator(c10::kCPU).get_state().equal(random));
  EXPECT_TRUE(torch::ones({2}).sum().item<float>() == 2.F);  // nothing records any more
}

}  // namespace
}  // namespace stagecraft
