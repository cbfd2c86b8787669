#include "stagecraft/runtime/loss_pipe.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/partition/loss_wrapper.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/tree/tree.h"
#include "tests/partition/sample_tensors.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

using at::Tensor;
using testing::HasSubstr;

constexpr int64_t kLossPipeWidth = 5;

Tensor loss_pipe_weight(double scale) {
  return sample_weight(kLossPipeWidth, scale);
}
Tensor loss_pipe_rows(int64_t count) {
  return sample_rows(count, kLossPipeWidth);
}
Tensor mse(const Tensor& y, const Tensor& t) {
  return at::mse_loss(y, t);
}

/// Three stages; what stage 0 gives is read by both others.
struct LossPipeModel {
  Tensor w0 = loss_pipe_weight(0.3), w1 = loss_pipe_weight(0.5), w2 = loss_pipe_weight(0.7);
  StageBody body() const {
    return stage_body(
        [w0 = w0, w1 = w1, w2 = w2](const Tensor& x) {
          const Tensor a = x.mm(w0).tanh();
          pipe_split();
          const Tensor b = a.mm(w1).tanh();
          pipe_split();
          return b.mm(w2) + a;
        },
        {{"w0", w0}, {"w1", w1}, {"w2", w2}});
  }
  std::vector<Tensor> take_grads() const {
    std::vector<Tensor> grads;
    for (const Tensor& w : {w0, w1, w2}) {
      grads.push_back(w.grad());
      w.mutable_grad().reset();
    }
    return grads;
  }
};

TEST(LossPipe, GivesTheGradientsOfPlainAutograd) {
  const LossPipeModel model;
  const auto wrapper = std::make_shared<TrivialLossWrapper>(model.body(), mse);
  const LossPipe training(
      pipeline(loss_body(wrapper), {{loss_pipe_rows(4), loss_pipe_rows(4)}, {}}));
  const Tensor x = loss_pipe_rows(6).requires_grad_();
  const Tensor target = loss_pipe_rows(6) * 2;
  const Tensor loss = training.run({x, target}).toTensor();
  const std::vector<Tensor> got = model.take_grads();
  const Tensor got_x = std::exchange(x.mutable_grad(), Tensor());

  const Tensor expected = wrapper->forward({x, target}, {}).toTensor();
  torch::autograd::backward({expected});
  EXPECT_EQ(difference("loss", loss, expected.detach()), "");
  EXPECT_EQ(difference("gradients", got, model.take_grads()), "");
  EXPECT_EQ(difference("gradient of x", got_x, x.grad()), "");
}

TEST(LossPipe, IsAProgramWithOneBackwardAStage) {
  const LossPipeModel model;
  const auto wrapper = std::make_shared<TrivialLossWrapper>(model.body(), mse);
  const LossPipe training(
      pipeline(loss_body(wrapper), {{loss_pipe_rows(4), loss_pipe_rows(4)}, {}}));
  const PipeInfo info = training.info();
  EXPECT_EQ(info.num_stages, 3);
  EXPECT_TRUE(info.has_loss_and_backward);
  EXPECT_FALSE(info_of(training.pipe()).has_loss_and_backward);
  EXPECT_EQ(info.graph,
            "%submod_pp_0.0 = submod_pp_0(args[0])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0)\n"
            "%submod_pp_2 = submod_pp_2(args[1], %submod_pp_0.0, %submod_pp_1.0)\n"
            "_, %grad.0.0.from.2, %grad.1.0.from.2 = backward submod_pp_2(loss)\n"
            "%grad.0.0.from.1 = backward submod_pp_1(%grad.1.0.from.2)\n"
            "%grad.0.0.to.1 = %grad.0.0.from.2 + %grad.0.0.from.1\n"
            "_ = backward submod_pp_0(%grad.0.0.to.1)\n"
            "return %submod_pp_2\n");
  EXPECT_THAT(training.pipe().graph().parts().states.front().other_names, testing::IsEmpty());
  EXPECT_NE(training.pipe().graph().find_state("module.w1"), nullptr);
}

struct WithPenalty : LossWrapper {
  using LossWrapper::LossWrapper;
  c10::IValue forward(const Args& args, const Kwargs& kwargs) override {
    const Tensor y = module().forward({args[0]}, {}).toTensor();
    return tree::dict(
        {{"logits", y}, {"loss", mse(y, kwargs.get("target").toTensor()) + y.pow(2).mean()}});
  }
};

TEST(LossPipe, FindsTheLossByKeyOrBySpec) {
  const LossPipeModel model;
  const auto wrapper = std::make_shared<WithPenalty>(model.body());
  const Pipe pipe =
      pipeline(loss_body(wrapper), {{loss_pipe_rows(4)}, {{"target", loss_pipe_rows(4)}}});
  const Kwargs target = {{"target", loss_pipe_rows(4) * 2}};
  const c10::IValue output = LossPipe(pipe).run({loss_pipe_rows(4)}, target);
  const std::vector<Tensor> by_key = model.take_grads();
  LossPipe(pipe, tree::dict({{"logits", false}, {"loss", true}})).run({loss_pipe_rows(4)}, target);
  EXPECT_EQ(difference("gradients", by_key, model.take_grads()), "");
  torch::autograd::backward(
      {wrapper->forward({loss_pipe_rows(4)}, target).toGenericDict().at("loss").toTensor()});
  EXPECT_EQ(difference("gradients", by_key, model.take_grads()), "");
  EXPECT_EQ(output.toGenericDict().size(), 2U);

  EXPECT_ERROR(LossPipe(pipe, tree::tuple({true, false})), MetadataError, "loss_spec");
  EXPECT_ERROR(LossPipe(pipe, tree::dict({{"logits", false}, {"loss", false}})), ArgumentError,
               "the loss spec has no True");
  EXPECT_ERROR(LossPipe(pipe, tree::dict({{"logits", 1}, {"loss", true}})), ArgumentError,
               "expected a bool");
  EXPECT_ERROR(LossPipe(pipe, tree::dict({{"logits", true}, {"loss", false}}))
                   .run({loss_pipe_rows(4)}, target),
               ArgumentError, "one element");
  EXPECT_ERROR(find_loss(TreeSpec::tuple({TreeSpec(), TreeSpec()})), ArgumentError,
               "no key \"loss\"");
  EXPECT_EQ(find_loss(TreeSpec::leaf()), 0U);
}

TEST(LossPipe, LeavesGradientsAloneWhenItFails) {
  const Tensor w = loss_pipe_weight(0.4);
  const StageBody body = stage_body(
      [w](const Tensor& x) {
        const Tensor a = x.mm(w).tanh();
        pipe_split();
        return a.mm(w.t());
      },
      {{"embed", w}, {"head", w}});
  const auto wrapper = std::make_shared<TrivialLossWrapper>(
      body, [](const Tensor& y, const Tensor& t) { return at::nll_loss(y.log_softmax(1), t); });
  auto target = [](int64_t label) { return torch::full({4}, label, at::kLong); };
  const LossPipe training(pipeline(loss_body(wrapper), {{loss_pipe_rows(4), target(1)}, {}}));
  training.run({loss_pipe_rows(4), target(2)});
  const Tensor before = w.grad().clone();
  EXPECT_THROW(training.run({loss_pipe_rows(4), target(99)}), std::exception);
  ASSERT_TRUE(w.grad().defined());
  EXPECT_TRUE(w.grad().equal(before));
}

TEST(LossPipe, NeedsALossThatIsATensor) {
  const Tensor w = loss_pipe_weight(0.3);
  const Pipe pipe = pipeline(stage_body(
                                 [w](const Args& args, const Kwargs&) -> c10::IValue {
                                   const Tensor x = args[0].toTensor();
                                   const Tensor y = x.mm(w);
                                   pipe_split();
                                   return tree::dict({{"y", y.sum()}, {"loss", x.size(0)}});
                                 },
                                 {{"w", w}}),
                             {{loss_pipe_rows(4)}, {}});
  EXPECT_ERROR(LossPipe(pipe).run({loss_pipe_rows(4)}), ArgumentError,
               "the loss must be a tensor with one element, got 4");
  EXPECT_ERROR(find_loss(TreeSpec::tuple({TreeSpec(), TreeSpec()})), ArgumentError,
               "pass a loss spec that marks the loss");
}

TEST(LossPipe, AddsUpCopiesAndHistories) {
  const Tensor w = loss_pipe_weight(0.4);
  const StageBody body = stage_body(
      [w](const Tensor& x) {
        const Tensor a = x.mm(w).tanh();
        pipe_split();
        return a.mm(w.t()) + x;
      },
      {{"embed", w}, {"head", w}});
  const auto wrapper = std::make_shared<TrivialLossWrapper>(body, mse);
  const LossPipe training(
      pipeline(loss_body(wrapper), {{loss_pipe_rows(4), loss_pipe_rows(4)}, {}}));
  ASSERT_EQ(training.pipe().ties().size(), 1U);
  const Tensor p = loss_pipe_rows(4).requires_grad_();
  auto take = [&] {
    std::vector<Tensor> grads = {w.grad(), p.grad()};
    w.mutable_grad().reset();
    p.mutable_grad().reset();
    return grads;
  };
  training.run({p.exp(), loss_pipe_rows(4)});  // an argument with a history, read by both stages
  const std::vector<Tensor> got = take();
  const Tensor& copy = training.pipe().stage_graph(StageId(1)).find_state("module.head")->tensor;
  EXPECT_EQ(difference("copy", copy.grad(), got[0]), "");
  torch::autograd::backward({wrapper->forward({p.exp(), loss_pipe_rows(4)}, {}).toTensor()});
  EXPECT_EQ(difference("gradients", got, take(), 1e-6), "");
}

TEST(LossWrapper, RefusesOtherArguments) {
  const LossPipeModel model;
  TrivialLossWrapper wrapper(model.body(), mse);
  EXPECT_ERROR(wrapper.forward({loss_pipe_rows(2)}, {}), ArgumentError,
               "takes two tensors, x and target, got 1");
  TrivialLossWrapper tuple(
      stage_body([](const Args& args, const Kwargs&) { return tree::tuple({args[0]}); }), mse);
  EXPECT_ERROR(tuple.forward({loss_pipe_rows(2), loss_pipe_rows(2)}, {}), ArgumentError,
               "needs a model that returns a tensor");
}

}  // namespace
}  // namespace stagecraft
