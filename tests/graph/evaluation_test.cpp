#include "stagecraft/graph/passes/evaluation.h"

#include <cstddef>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/rnn.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {
namespace {

using at::Tensor;
using Forward = std::function<Tensor(const Tensor&)>;

Tensor sample(at::IntArrayRef shape) {
  int64_t count = 1;
  for (const int64_t size : shape) count *= size;
  return at::arange(count, at::kFloat).sin().view(shape);
}

std::vector<Tensor> clones(const torch::nn::Module& module) {
  std::vector<Tensor> result;
  for (const Tensor& buffer : module.buffers()) result.push_back(buffer.clone());
  return result;
}

/// Captures the module in training and expects of the graph for evaluation what the module gives
/// in evaluation, bit for bit, whatever is drawn; and that nothing is updated.
Graph expect_evaluation(torch::nn::Module& module, const Forward& forward, const Tensor& x,
                        bool differs = true) {
  StageBody model;
  model.forward = [&](const Args& args, const Kwargs&) -> c10::IValue {
    return forward(args[0].toTensor());
  };
  for (const auto& entry : module.named_parameters()) {
    model.parameters.emplace_back(entry.key(), entry.value());
  }
  for (const auto& entry : module.named_buffers()) {
    model.buffers.emplace_back(entry.key(), entry.value());
  }
  module.train();
  // Statistics that are not those that it begins with.
  at::manual_seed(3);
  forward(x * 2 + 1);
  const Graph trained = capture(model, {{x}, {}});
  Graph evaluated = for_evaluation(trained);
  EXPECT_EQ(evaluated.parts().nodes.size(), trained.parts().nodes.size());
  for (std::size_t i = 0; i < trained.parts().states.size(); ++i) {
    EXPECT_TRUE(evaluated.parts().states[i].tensor.is_same(trained.parts().states[i].tensor));
  }
  const std::vector<Tensor> before = clones(module);
  const Tensor got = GraphProgram(evaluated).run({x}).toTensor();
  const std::vector<Tensor> after = clones(module);
  for (std::size_t i = 0; i < before.size(); ++i) {
    EXPECT_TRUE(after[i].equal(before[i])) << "buffer " << i;
  }
  module.eval();
  EXPECT_TRUE(got.equal(forward(x)));
  EXPECT_EQ(!GraphProgram(trained).run({x}).toTensor().equal(got), differs);
  return evaluated;
}

TEST(Evaluation, HasNoDropout) {
  torch::nn::Dropout plain(0.5);
  expect_evaluation(
      *plain, [&](const Tensor& x) { return plain(x) * 2; }, sample({4, 6}));
  torch::nn::Dropout in_place(torch::nn::DropoutOptions(0.5).inplace(true));
  expect_evaluation(
      *in_place, [&](const Tensor& x) { return in_place(x + 1); }, sample({4, 6}));
  torch::nn::Dropout2d channels(0.5);
  expect_evaluation(
      *channels, [&](const Tensor& x) { return channels(x); }, sample({4, 6, 3, 3}));
  torch::nn::Dropout3d volumes(0.5);
  expect_evaluation(
      *volumes, [&](const Tensor& x) { return volumes(x); }, sample({4, 6, 2, 2, 2}));
  torch::nn::AlphaDropout alpha(0.5);
  expect_evaluation(
      *alpha, [&](const Tensor& x) { return alpha(x); }, sample({4, 6}));
  torch::nn::FeatureAlphaDropout features(0.5);
  expect_evaluation(
      *features, [&](const Tensor& x) { return features(x); }, sample({4, 6, 3, 3}));
}

TEST(Evaluation, NormalisesWithRunningStatistics) {
  torch::nn::BatchNorm1d norm(6);
  expect_evaluation(
      *norm, [&](const Tensor& x) { return norm(x); }, sample({4, 6}));
  torch::nn::BatchNorm2d image(6);
  expect_evaluation(
      *image, [&](const Tensor& x) { return image(x); }, sample({4, 6, 3, 3}));
  torch::nn::InstanceNorm2d instance(
      torch::nn::InstanceNorm2dOptions(6).affine(true).track_running_stats(true));
  expect_evaluation(
      *instance, [&](const Tensor& x) { return instance(x); }, sample({4, 6, 3, 3}));
}

TEST(Evaluation, NormalisesWithTheBatchWithoutRunningStatistics) {
  torch::nn::BatchNorm1d norm(torch::nn::BatchNorm1dOptions(6).track_running_stats(false));
  expect_evaluation(
      *norm, [&](const Tensor& x) { return norm(x); }, sample({4, 6}), false);
  torch::nn::InstanceNorm2d instance(torch::nn::InstanceNorm2dOptions(6));
  expect_evaluation(
      *instance, [&](const Tensor& x) { return instance(x); }, sample({4, 6, 3, 3}), false);
}

TEST(Evaluation, HasNoDropoutBetweenLayersOfRecurrentNetworks) {
  at::manual_seed(1);
  torch::nn::LSTM lstm(torch::nn::LSTMOptions(6, 5).num_layers(3).dropout(0.5));
  expect_evaluation(
      *lstm, [&](const Tensor& x) { return std::get<0>(lstm(x)); }, sample({4, 3, 6}));
  torch::nn::GRU gru(torch::nn::GRUOptions(6, 5).num_layers(2).dropout(0.5).bidirectional(true));
  expect_evaluation(
      *gru, [&](const Tensor& x) { return std::get<0>(gru(x)); }, sample({4, 3, 6}));
  torch::nn::RNN rnn(
      torch::nn::RNNOptions(6, 5).num_layers(2).dropout(0.5).nonlinearity(torch::kReLU));
  expect_evaluation(
      *rnn, [&](const Tensor& x) { return std::get<0>(rnn(x)); }, sample({4, 3, 6}));
}

TEST(Evaluation, HasOneSlopeOfRrelu) {
  torch::nn::RReLU rrelu;
  expect_evaluation(
      *rrelu, [&](const Tensor& x) { return rrelu(x); }, sample({4, 6}));
  torch::nn::RReLU in_place(torch::nn::RReLUOptions().inplace(true));
  expect_evaluation(
      *in_place, [&](const Tensor& x) { return in_place(x * 3); }, sample({4, 6}));
}

/// Attention as modules have it: with dropout while they train.
struct Attention : torch::nn::Module {
  Tensor forward(const Tensor& x) const {
    return at::scaled_dot_product_attention(x, x, x, {}, is_training() ? 0.5 : 0.0, true);
  }
};

TEST(Evaluation, AttendsToEverything) {
  Attention attention;
  expect_evaluation(
      attention, [&](const Tensor& x) { return attention.forward(x); }, sample({2, 2, 5, 4}));
}

// What torch.export makes of modules when it decomposes them, and what stands in branches.
TEST(Evaluation, KnowsDecomposedOperators) {
  const Graph graph = parse_graph(
      R"(graph exported
buffer %bn.running_mean: float32[6] &0
buffer %bn.running_var: float32[6] &1
buffer %bn.num_batches_tracked: int64[] &2
args (%p: bool[], %x: float32[4, 6])
kwargs {}
%count = aten::add.Tensor(self=%bn.num_batches_tracked, other=1, alpha=1): int64[]
%counted = aten::copy_(self=%bn.num_batches_tracked, src=%count, non_blocking=False): int64[] &2
%y, %mean, %deviation, %new_mean, %new_var = aten::_native_batch_norm_legit_functional(input=%x, weight=None, bias=None, running_mean=%bn.running_mean, running_var=%bn.running_var, training=True, momentum=0.1, eps=1e-05): float32[4, 6], float32[6], float32[6], float32[6], float32[6]
%set_mean = aten::copy_(self=%bn.running_mean, src=%new_mean, non_blocking=False): float32[6] &0
%set_var = aten::copy_(self=%bn.running_var, src=%new_var, non_blocking=False): float32[6] &1
%z, %mask = aten::native_dropout(input=%y, p=0.5, train=True): float32[4, 6], bool[4, 6]
cond: [%out] = stagecraft::cond(predicate=%p, operands=[%z], sizes=[]): [float32[4, 6]]
  graph exported
  args (%a: float32[4, 6],)
  kwargs {}
  %drop = aten::dropout(input=%a, p=0.5, train=True): float32[4, 6]
  return (%drop,)
  graph exported
  args (%a: float32[4, 6],)
  kwargs {}
  %leak = aten::rrelu(self=%a, lower=0.125, upper=0.25, training=True, generator=None): float32[4, 6]
  return (%leak,)
return %out
)",
      [](const std::string& name) {
        if (name == "bn.num_batches_tracked") return at::full({}, 3, at::kLong);
        return at::arange(6, at::kFloat) + (name == "bn.running_mean" ? 0 : 1);
      });
  const Graph evaluated = for_evaluation(graph);
  const Tensor x = sample({4, 6});
  const Tensor normal = at::batch_norm(x, {}, {}, at::arange(6, at::kFloat),
                                       at::arange(6, at::kFloat) + 1, false, 0.1, 1e-5, true);
  for (const bool holds : {true, false}) {
    const Tensor got = GraphProgram(evaluated).run({at::full({}, holds), x}).toTensor();
    EXPECT_TRUE(got.equal(holds ? normal : at::rrelu(normal, 0.125, 0.25, false)));
  }
  EXPECT_TRUE(graph.find_state("bn.running_mean")->tensor.equal(at::arange(6, at::kFloat)));
  EXPECT_TRUE(graph.find_state("bn.running_var")->tensor.equal(at::arange(6, at::kFloat) + 1));
  EXPECT_EQ(graph.find_state("bn.num_batches_tracked")->tensor.item<int64_t>(), 3);
  GraphProgram(graph).run({at::full({}, true), x});
  EXPECT_EQ(graph.find_state("bn.num_batches_tracked")->tensor.item<int64_t>(), 4);
}

TEST(Evaluation, LeavesGraphsWithoutAnyOfItAsTheyAre) {
  const std::string text =
      "graph exported\nbuffer %count: int64[] &0\nargs (%x: float32[2],)\nkwargs {}\n"
      "%add_ = aten::add_.Tensor(self=%count, other=1, alpha=1): int64[] &0\n"
      "%y = aten::dropout(input=%x, p=0.5, train=False): float32[2]\nreturn %y\n";
  const Graph graph =
      parse_graph(text, [](const std::string&) { return at::zeros({}, at::kLong); });
  EXPECT_EQ(to_text(for_evaluation(graph)), text);
}

// What has no place for running statistics has no other way in evaluation.
TEST(Evaluation, NormsWithoutStatisticsStayAsTheyAre) {
  const Graph graph = parse_graph(R"(graph
args (%x: float32[4, 3],)
kwargs {}
%norm, None, None = aten::_native_batch_norm_legit.no_stats(input=%x, weight=None, bias=None, training=True, momentum=0.1, eps=1e-05): float32[4, 3], None, None
return %norm
)",
                                  {});
  const Tensor x = sample({4, 3});
  EXPECT_TRUE(GraphProgram(for_evaluation(graph))
                  .run({x})
                  .toTensor()
                  .equal(GraphProgram(graph).run({x}).toTensor()));
}

}  // namespace
}  // namespace stagecraft
