#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/base/error.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

constexpr int64_t kWidth = 6;

Tensor rows(int64_t count, double phase = 0) {
  return (torch::arange(count * kWidth, at::kFloat).view({count, kWidth}) + phase).cos();
}

/// What a stage gave in some steps, in order.
struct Outcome {
  std::vector<Tensor> tensors;

  void add(const c10::IValue& value) {
    for (const c10::IValue& leaf : tree::leaves(value)) {
      tensors.push_back(leaf.isTensor() && leaf.toTensor().defined()
                            ? leaf.toTensor().detach().clone()
                            : Tensor());
    }
  }
};

void expect_equal(const Outcome& a, const Outcome& b) {
  ASSERT_EQ(a.tensors.size(), b.tensors.size());
  for (std::size_t i = 0; i < a.tensors.size(); ++i) {
    ASSERT_EQ(a.tensors[i].defined(), b.tensors[i].defined()) << i;
    if (a.tensors[i].defined()) {
      EXPECT_TRUE(tree::leaf_equal(a.tensors[i], b.tensors[i])) << i;
    }
  }
}

struct RecomputeCase {
  StageBody body;
  bool has_loss = false;
  bool is_split = false;
  bool has_seed = true;
};

/// Two microbatches at a time, backward in the order of their forwards, for two rounds.
Outcome run(const RecomputeCase& c, bool recompute) {
  for (const auto& [name, buffer] : c.body.buffers) buffer.zero_();
  at::Generator generator = at::globalContext().defaultGenerator(c10::kCPU);
  generator.set_current_seed(5);
  Stage stage(StageId(0), 1, c.body, {.recompute = recompute});
  Outcome outcome;
  for (int round = 0; round < 2; ++round) {
    std::vector<Tensor> inputs;
    std::vector<std::vector<c10::IValue>> grads;
    for (int m = 0; m < 2; ++m) {
      inputs.push_back(rows(3 + m, round).requires_grad_());
      ForwardOptions options;
      if (c.has_seed) options.seed = static_cast<uint64_t>(10 * round + m);
      const c10::IValue output = stage.forward(MicrobatchId(m), {{inputs.back()}, {}}, options);
      outcome.add(output);
      if (stage.added_loss(MicrobatchId(m)).defined()) {
        outcome.add(stage.added_loss(MicrobatchId(m)));
      }
      std::vector<c10::IValue> of_outputs;
      for (const c10::IValue& value : outputs_of(output)) {
        of_outputs.emplace_back(value.toTensor().detach().sin());
      }
      if (c.has_loss) {
        Tensor loss;
        for (const c10::IValue& value : outputs_of(output)) {
          const Tensor part = value.toTensor().pow(2).mean();
          loss = loss.defined() ? loss + part : part;
        }
        stage.set_loss(MicrobatchId(m), loss);
        of_outputs.clear();
      }
      grads.push_back(std::move(of_outputs));
    }
    for (int m = 0; m < 2; ++m) {
      const auto& given = grads[static_cast<std::size_t>(m)];
      std::vector<c10::IValue> got;
      if (c.is_split) {
        got = stage.backward_input(MicrobatchId(m), given, 0.5);
        stage.backward_weight(MicrobatchId(m));
      } else {
        got = stage.backward(MicrobatchId(m), given, 0.5);
      }
      for (const c10::IValue& value : got) outcome.add(value);
    }
  }
  for (const auto& [name, tensor] : c.body.parameters) {
    outcome.add(tensor.grad());
    tensor.mutable_grad().reset();
  }
  for (const auto& [name, buffer] : c.body.buffers) outcome.add(buffer);
  outcome.add(generator.get_state());
  return outcome;
}

void expect_same_runs(const StageBody& body) {
  for (const bool has_loss : {false, true}) {
    for (const bool is_split : {false, true}) {
      for (const bool has_seed : {false, true}) {
        SCOPED_TRACE(std::to_string(has_loss) + std::to_string(is_split) +
                     std::to_string(has_seed));
        const RecomputeCase c{body, has_loss, is_split, has_seed};
        expect_equal(run(c, true), run(c, false));
      }
    }
  }
}

Tensor recompute_weight(double scale = 0.4) {
  return (torch::arange(kWidth * kWidth, at::kFloat).view({kWidth, kWidth}).sin() * scale)
      .requires_grad_();
}

TEST(Recompute, GivesTheSameBitsWithDropoutAndSeveralOutputs) {
  const Tensor w = recompute_weight();
  const Tensor v = recompute_weight(0.3);
  expect_same_runs(stage_body(
      [w, v](const Args& args, const Kwargs&) {
        const Tensor h = at::dropout(args[0].toTensor().mm(w).tanh(), 0.3, true);
        add_loss(h.abs().mean());
        return tree::tuple({h.mm(v), (h * h).sum(1)});
      },
      {{"w", w}, {"v", v}}));
}

TEST(Recompute, FindsAutocastAsItWas) {
  const Tensor w = recompute_weight();
  const StageBody body =
      stage_body([w](const Tensor& x) { return x.mm(w).tanh().mm(w).to(at::kFloat); }, {{"w", w}});
  at::autocast::set_autocast_enabled(c10::kCPU, true);
  at::autocast::increment_nesting();
  const RecomputeCase c{body, false, false, true};
  const Outcome again = run(c, true);
  at::autocast::clear_cache();
  const Outcome plain = run(c, false);
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(c10::kCPU, false);
  EXPECT_TRUE(at::autocast::is_autocast_cache_enabled());
  // Weights that were cast once for both microbatches have one gradient for both.
  ASSERT_EQ(again.tensors.size(), plain.tensors.size());
  EXPECT_TRUE(again.tensors.back().defined());
  for (std::size_t i = 0; i < plain.tensors.size(); ++i) {
    if (plain.tensors[i].is_floating_point()) {
      EXPECT_TRUE(again.tensors[i].allclose(plain.tensors[i], 1e-2, 1e-2)) << i;
    }
  }
}

/// The gradient of the input after a forward inside an autocast region and a backward after it.
Tensor grad_behind_region(Stage& stage, bool is_cast) {
  at::autocast::set_autocast_enabled(c10::kCPU, is_cast);
  at::autocast::increment_nesting();
  stage.forward(MicrobatchId(0), {{rows(3).requires_grad_()}, {}});
  if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(c10::kCPU, false);
  return stage.backward(MicrobatchId(0), {rows(3)})[0].toTensor();
}

TEST(Recompute, FindsAnAutocastRegionThatHasEnded) {
  const Tensor w = recompute_weight();
  const StageBody body =
      stage_body([w](const Tensor& x) { return x.mm(w).tanh().mm(w).to(at::kFloat); }, {{"w", w}});
  Stage plain(StageId(0), 1, body);
  Stage again(StageId(0), 1, body, {.recompute = true});
  // The second time with other weights: nothing that was cast before may be left.
  for (int step = 0; step < 2; ++step) {
    const Tensor expected = grad_behind_region(plain, true);
    EXPECT_FALSE(expected.equal(grad_behind_region(plain, false)));
    EXPECT_TRUE(expected.equal(grad_behind_region(again, true))) << step;
    EXPECT_FALSE(at::autocast::is_autocast_enabled(c10::kCPU));
    const c10::NoGradGuard no_grad;
    w.mul_(1.5);
  }
  w.mutable_grad().reset();
}

TEST(Recompute, UpdatesBuffersOnce) {
  const Tensor w = recompute_weight();
  const Tensor mean = torch::zeros({kWidth});
  const Tensor var = torch::zeros({kWidth});
  const Tensor unchanged = torch::zeros({kWidth});
  StageBody body = stage_body(
      [=](const Tensor& x) {
        const Tensor y = at::batch_norm(x.mm(w), {}, {}, mean, var, true, 0.1, 1e-5, false);
        return y + unchanged;
      },
      {{"w", w}});
  body.buffers = {{"mean", mean}, {"var", var}, {"unchanged", unchanged}};
  expect_same_runs(body);
}

TEST(Recompute, ReadsBuffersAsTheyWere) {
  const Tensor w = recompute_weight();
  const Tensor count = torch::zeros({});
  StageBody body = stage_body(
      [=](const Tensor& x) {
        {
          const c10::NoGradGuard no_grad;
          count.add_(1);
        }
        return x.mm(w) * count.clone();
      },
      {{"w", w}});
  body.buffers = {{"count", count}};
  expect_same_runs(body);
}

TEST(Recompute, RunsTwiceAndKeepsNothingInBetween) {
  const Tensor w = recompute_weight();
  int calls = 0;
  c10::weak_intrusive_ptr<c10::TensorImpl> hidden(w.getIntrusivePtr());
  const StageBody body = stage_body(
      [&](const Tensor& x) {
        ++calls;
        const Tensor h = x.mm(w).tanh();
        hidden = c10::weak_intrusive_ptr<c10::TensorImpl>(h.getIntrusivePtr());
        return h.mm(w);
      },
      {{"w", w}});
  for (const bool recompute : {false, true}) {
    for (const bool is_split : {false, true}) {
      calls = 0;
      Stage stage(StageId(0), 1, body, {.recompute = recompute});
      const Tensor x = rows(3).requires_grad_();
      const Tensor y = stage.forward(MicrobatchId(0), {{x}, {}}).toTensor();
      EXPECT_TRUE(y.requires_grad());
      EXPECT_EQ(hidden.expired(), recompute);
      EXPECT_EQ(stage.num_pending(), 1U);
      EXPECT_ERROR(stage.set_recompute(true), ArgumentError, "1 microbatches wait");
      EXPECT_ERROR(stage.backward(MicrobatchId(0), {rows(3), rows(3)}), ArgumentError,
                   "has 1 outputs, got 2 gradients");
      if (is_split) {
        stage.backward_input(MicrobatchId(0), {rows(3)});
        stage.backward_weight(MicrobatchId(0));
      } else {
        stage.backward(MicrobatchId(0), {rows(3)});
      }
      EXPECT_EQ(calls, recompute ? 2 : 1);
      EXPECT_TRUE(hidden.expired());
      EXPECT_EQ(stage.num_pending(), 0U);
    }
  }
  w.mutable_grad().reset();
}

TEST(Recompute, PutsHooksWhereTheStageHasThem) {
  const Tensor w = recompute_weight();
  expect_same_runs(stage_body(
      [w](const Tensor& x) {
        if (x.requires_grad()) x.register_hook([](const Tensor& grad) { return grad * 2; });
        return x.mm(w);
      },
      {{"w", w}}));
  // Not on the tensor that came in.
  Stage stage(StageId(0), 1, stage_body([](const Tensor& x) {
                if (x.requires_grad()) x.register_hook([](const Tensor& grad) { return grad * 2; });
                return x * 1;
              }),
              {.recompute = true});
  const Tensor x = rows(2).requires_grad_();
  stage.forward(MicrobatchId(0), {{x}, {}});
  torch::autograd::backward({x.sum()});
  EXPECT_EQ(x.grad().sum().item<float>(), 2.F * kWidth);
}

TEST(Recompute, RefusesArgumentsThatChange) {
  const StageBody in_place = stage_body([](const Tensor& x) { return x.mul_(2); });
  Stage stage(StageId(2), 3, in_place, {.recompute = true});
  EXPECT_ERROR(stage.forward(MicrobatchId(0), {{rows(3)}, {}}), ArgumentError,
               "stage 2: its forward changes an argument in place");
  EXPECT_EQ(stage.num_pending(), 0U);
  Stage other(StageId(1), 3, stage_body([](const Tensor& x) { return x * 2; }),
              {.recompute = true});
  const Tensor x = rows(3);
  other.forward(MicrobatchId(4), {{x}, {}});
  x.add_(1);
  EXPECT_ERROR(other.backward(MicrobatchId(4), {rows(3)}), Error,
               "stage 1, microbatch 4: an argument was changed in place between its forward and");
}

}  // namespace
}  // namespace stagecraft
