#include "stagecraft/train/trainer.h"

#include <limits>
#include <string>

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/train/clip.h"
#include "tests/support/expect_error.h"
#include "tests/train/small_gpt.h"

namespace stagecraft {

namespace {

constexpr int64_t kSteps = 5;

/// The same training without anything of a pipeline: the module itself, microbatch by microbatch.
/// `reversed`: backward of the last microbatch first.
/// With one thread inside operators, as a Trainer has by default: torch 2.15 sums the gradients of
/// layer norms over threads.
std::vector<double> plain_curve(const GptSizes& sizes, int32_t microbatches, bool reversed) {
  at::set_num_threads(1);
  const Gpt gpt(sizes, 7);
  const StageBody body = gpt.body();
  std::vector<ModelState> states;
  for (const auto& [name, tensor] : body.parameters) {
    ModelState state;
    state.name = name;
    state.copies = {tensor};
    states.push_back(state);
  }
  AdamW optimizer(states);
  const LearningRate rate{.peak = 0.01, .least = 0.001, .warmup = 2, .steps = 12};
  std::vector<double> numbers;
  for (int64_t step = 0; step < kSteps; ++step) {
    const auto [inputs, targets] = batch_of(step);
    const auto input_parts = inputs.tensor_split(microbatches);
    const auto target_parts = targets.tensor_split(microbatches);
    optimizer.zero_grad();
    double sum = 0;
    std::vector<at::Tensor> losses;
    for (std::size_t m = 0; m < input_parts.size(); ++m) {
      const double weight =
          static_cast<double>(input_parts[m].size(0)) / static_cast<double>(inputs.size(0));
      const at::Tensor loss =
          cross_entropy(body.forward({input_parts[m]}, {}).toTensor(), target_parts[m]);
      sum += weight * loss.item<double>();
      losses.push_back(loss.mul(weight));
      if (!reversed) losses.back().backward();
    }
    if (reversed) {
      for (auto loss = losses.rbegin(); loss != losses.rend(); ++loss) loss->backward();
    }
    const double norm = grad_norm(states);
    clip_grads(states, norm, 0.5);
    optimizer.step(rate.at(step));
    numbers.push_back(sum);
    numbers.push_back(norm);
  }
  return numbers;
}

std::vector<double> pipeline_curve(TrainerSetup setup) {
  Trainer trainer = make_trainer(std::move(setup));
  return curve(trainer, kSteps);
}

TrainerSetup trainer_setup_of(int32_t stages, const std::string& schedule, int32_t ranks) {
  TrainerSetup setup;
  setup.stages = stages;
  setup.options.schedule = schedule;
  setup.options.ranks = ranks;
  return setup;
}

}  // namespace

TEST(Trainer, HasTheCurveOfTheModelWithoutAPipeline) {
  const std::vector<double> expected = plain_curve(small_sizes(), 4, false);
  const std::vector<double> reversed = plain_curve(small_sizes(), 4, true);
  EXPECT_NE(expected, reversed);
  struct Case {
    int32_t stages;
    const char* schedule;
    int32_t ranks;
    bool is_reversed = false;
  };
  for (const Case& c : std::vector<Case>{{1, "1F1B", 1},
                                         {2, "1F1B", 2},
                                         {4, "1F1B", 4},
                                         {2, "GPipe", 2},
                                         {4, "GPipe", 4},
                                         {4, "Interleaved1F1B", 2},
                                         {4, "InterleavedZeroBubble", 2},
                                         {2, "ZBVZeroBubble", 1},
                                         {4, "ZBVZeroBubble", 2},
                                         {4, "DualPipeV", 2},
                                         {4, "LoopedBFS", 2, true}}) {
    EXPECT_EQ(pipeline_curve(trainer_setup_of(c.stages, c.schedule, c.ranks)),
              c.is_reversed ? reversed : expected)
        << c.schedule << " with " << c.stages << " stages on " << c.ranks << " ranks";
  }
}

TEST(Trainer, HasOneCurveForOtherModelsToo) {
  for (const bool is_learned : {false, true}) {
    TrainerSetup one = trainer_setup_of(1, "1F1B", 1);
    one.sizes.positions = is_learned ? Positions::kLearned : Positions::kRotary;
    one.sizes.is_tied = !is_learned;
    one.sizes.dropout = 0.2;
    one.use.autocast = is_learned ? std::nullopt : std::optional(at::kBFloat16);
    TrainerSetup four = one;
    four.stages = 4;
    four.options.ranks = 2;
    four.options.schedule = "ZBVZeroBubble";
    four.options.recompute = {0, 2};
    const std::vector<double> expected = pipeline_curve(one);
    EXPECT_EQ(pipeline_curve(four), expected);
    one.sizes.dropout = 0;
    EXPECT_NE(pipeline_curve(one), expected);
  }
}

TEST(Trainer, AccumulatesAsIfTheMicrobatchesWereInOneStep) {
  TrainerSetup eight = trainer_setup_of(2, "1F1B", 2);
  eight.options.microbatches = 8;
  TrainerSetup twice = eight;
  twice.options.microbatches = 4;
  twice.options.accumulate = 2;
  EXPECT_EQ(pipeline_curve(twice), pipeline_curve(eight));
  // Another number of microbatches regroups sums.
  TrainerSetup two = eight;
  two.options.microbatches = 2;
  const std::vector<double> a = pipeline_curve(eight);
  const std::vector<double> b = pipeline_curve(two);
  EXPECT_NE(a, b);
  for (std::size_t i = 0; i < a.size(); i += 2) EXPECT_NEAR(a[i], b[i], 1e-5);
}

TEST(Trainer, CopiesOfATiedWeightStayTheSame) {
  const Gpt gpt(small_sizes(), 7);
  const Pipe cut = gpt.cut({.points = {}, .policy = equal_cost(2)});
  // The same graph with a copy of the tied weight in each stage.
  Pipe pipe(cut.graph(), {.points = {}, .policy = equal_cost(2)});
  ASSERT_FALSE(pipe.ties().empty());
  Trainer trainer(pipe, cross_entropy, {.schedule = "1F1B", .ranks = 2, .seed = 3});
  const std::vector<double> numbers = curve(trainer, kSteps);
  int tied = 0;
  for (const ModelState& state : trainer.states()) {
    if (!state.is_parameter || state.copies.size() < 2) continue;
    ++tied;
    EXPECT_TRUE(same_bits({state.copies[0]}, {state.copies[1]}));
  }
  EXPECT_EQ(tied, 1);
  const Checkpoint checkpoint = trainer.checkpoint();
  Trainer one = make_trainer(trainer_setup_of(1, "1F1B", 1));
  one.restore(checkpoint);
  EXPECT_TRUE(same_bits(values_of(one), values_of(trainer)));
}

TEST(Trainer, EvaluatesWithoutChangingAnything) {
  TrainerSetup setup = trainer_setup_of(2, "1F1B", 2);
  setup.sizes.dropout = 0.3;
  Trainer trainer = make_trainer(setup);
  Trainer other = make_trainer(setup);
  const auto [inputs, targets] = batch_of(50);
  curve(trainer, 2);
  curve(other, 2);
  const double loss = trainer.eval_loss({inputs}, targets);
  EXPECT_EQ(trainer.eval_loss({inputs}, targets), loss);  // no dropout
  const at::Tensor logits = trainer.predict({inputs}).toTensor();
  EXPECT_EQ(logits.sizes(), (at::IntArrayRef{9, 8, 32}));
  EXPECT_NEAR(cross_entropy(logits, targets).item<double>(), loss, 1e-5);
  EXPECT_EQ(curve(trainer, 4), curve(other, 4));
}

TEST(Trainer, StaysAsItWasWhenAStepFails) {
  TrainerSetup setup = trainer_setup_of(2, "1F1B", 2);
  setup.sizes.dropout = 0.2;
  Trainer trainer = make_trainer(setup);
  Trainer other = make_trainer(setup);
  curve(trainer, 2);
  const auto before = values_of(trainer);
  const auto [inputs, targets] = batch_of(2);
  // An id that the embedding lacks, in a late microbatch.
  at::Tensor bad = inputs.clone();
  bad[8][3] = 1000;
  EXPECT_THROW(trainer.step({bad}, targets), StageError);
  EXPECT_EQ(trainer.steps(), 2);
  EXPECT_TRUE(same_bits(values_of(trainer), before));
  curve(other, 2);
  EXPECT_EQ(curve(trainer, 5), curve(other, 5));
}

TEST(Trainer, StopsBeforeWeightsAreLost) {
  Trainer trainer = make_trainer(trainer_setup_of(2, "1F1B", 2));
  const auto before = values_of(trainer);
  {
    const at::NoGradGuard no_grad;
    trainer.states().back().tensor().mul_(std::numeric_limits<double>::quiet_NaN());
  }
  const auto batch = batch_of(0);
  EXPECT_ERROR(trainer.step({batch.first}, batch.second), Error,
               "has elements that are infinite or NaN");
  EXPECT_EQ(trainer.steps(), 0);
  auto after = values_of(trainer);
  after.pop_back();
  EXPECT_TRUE(same_bits(after, {before.begin(), before.end() - 1}));
}

namespace {

/// tanh(x w), by position; or x and y by name, with the loss among the outputs.
Graph small_graph(bool by_name) {
  const std::string args = by_name ? R"(args ()
kwargs {"x": %x: float32[B, 3], "y": %y: float32[B, 2]}
)"
                                   : R"(args (%x: float32[B, 3],)
kwargs {}
)";
  const std::string body = R"(%mm = aten::mm(self=%x, mat2=%w): float32[B, 2]
%tanh = aten::tanh(self=%mm): float32[B, 2]
)";
  const std::string end =
      by_name ? R"(%loss = aten::mse_loss(self=%tanh, target=%y, reduction=1): float32[]
return {"loss": %loss, "out": %tanh}
)"
              : "return %tanh\n";
  return parse_graph(
      "graph exported\nsize B = 4, at least 1\nparameter %w: float32[3, 2]\n" + args + body + end,
      [](const std::string&) {
        return at::arange(6, at::kFloat).view({3, 2}).sin().requires_grad_();
      });
}

Trainer small_trainer(bool by_name, int32_t stages) {
  const Loss by_output([](const c10::IValue& output, const c10::IValue&, const Kwargs&) {
    return output.toGenericDict().at("loss");
  });
  const Loss by_target(
      [](const at::Tensor& output, const at::Tensor& y) { return at::mse_loss(output, y); });
  return Trainer(Pipe(small_graph(by_name), {.policy = equal_operators(stages)}),
                 by_name ? by_output : by_target,
                 {.ranks = stages, .microbatches = 4, .learning_rate = {.peak = 0.01}});
}

}  // namespace

TEST(Trainer, TakesArgumentsByNameAndALossOfTheModel) {
  const at::Tensor x = at::arange(27, at::kFloat).view({9, 3}).cos();
  const at::Tensor y = at::arange(18, at::kFloat).view({9, 2}).sin();
  for (const int32_t stages : {1, 2, 3}) {
    Trainer expected = small_trainer(false, 1);
    Trainer by_name = small_trainer(true, stages);
    const Arguments named{{}, {{"x", x}, {"y", y}}};
    for (int i = 0; i < 3; ++i) {
      const TrainStep step = by_name.step(named, c10::IValue());
      const TrainStep same = expected.step({x}, y);
      EXPECT_EQ(step.loss, same.loss) << stages << " stages, step " << i;
      EXPECT_EQ(step.grad_norm, same.grad_norm) << stages << " stages, step " << i;
    }
    EXPECT_EQ(by_name.eval_loss(named, c10::IValue()), expected.eval_loss({x}, y));
    EXPECT_TRUE(same_bits(values_of(by_name), values_of(expected)));
    EXPECT_EQ(expected.step(Arguments{{x}, {}}, y).loss, by_name.step(named, c10::IValue()).loss);
  }
}

TEST(Trainer, PutsBuffersBackAfterAnEvaluation) {
  const at::Tensor calls = at::zeros({1});
  const Graph graph =
      parse_graph(R"(graph exported
size B = 4, at least 1
parameter %w: float32[3, 2]
buffer %calls: float32[1] &0
args (%x: float32[B, 3],)
kwargs {}
%add_ = aten::add_.Scalar(self=%calls, other=1, alpha=1): float32[1] &0
%mm = aten::mm(self=%x, mat2=%w): float32[B, 2]
return %mm
)",
                  [&](const std::string& name) {
                    return name == "calls" ? calls : at::ones({3, 2}).requires_grad_();
                  });
  Trainer trainer(
      Pipe(graph, {.policy = equal_operators(1)}),
      [](const at::Tensor& y, const at::Tensor& target) { return at::mse_loss(y, target); },
      {.ranks = 1, .microbatches = 2});
  const at::Tensor x = at::ones({4, 3});
  trainer.step({x}, at::zeros({4, 2}));
  EXPECT_EQ(calls.item<float>(), 2);
  trainer.eval_loss({x}, at::zeros({4, 2}));
  trainer.predict({x});
  EXPECT_EQ(calls.item<float>(), 2);
}

TEST(Trainer, PredictsMicrobatchByMicrobatch) {
  const at::Tensor x = at::arange(27, at::kFloat).view({9, 3}).cos();
  const at::Tensor y = at::arange(18, at::kFloat).view({9, 2}).sin();
  Trainer trainer = small_trainer(true, 2);
  const Arguments named{{}, {{"x", x}, {"y", y}}};
  const std::vector<c10::IValue> outputs = trainer.predict_each(named);
  ASSERT_EQ(outputs.size(), 4U);
  const at::Tensor w = trainer.states()[0].tensor();
  const auto parts = x.tensor_split(4);
  double loss = 0;
  for (std::size_t m = 0; m < 4; ++m) {
    const auto dict = outputs[m].toGenericDict();
    const at::Tensor out = dict.at("out").toTensor();
    EXPECT_TRUE(out.equal(parts[m].mm(w).tanh())) << m;
    EXPECT_FALSE(out.requires_grad());
    loss += dict.at("loss").toTensor().item<double>() * static_cast<double>(out.size(0)) / 9;
  }
  EXPECT_NEAR(trainer.eval_loss(named, c10::IValue()), loss, 1e-7);
  // By position they can be merged.
  Trainer plain = small_trainer(false, 2);
  EXPECT_TRUE(plain.predict({x}).toTensor().equal(plain.predict(Arguments{{x}, {}}).toTensor()));
  EXPECT_EQ(plain.predict_each(Arguments{{x}, {}}).size(), 4U);
}

TEST(Trainer, RefusesOptionsThatDoNotFit) {
  TrainerSetup setup = trainer_setup_of(2, "1F1B", 2);
  setup.options.recompute = {2};
  EXPECT_ERROR(make_trainer(setup), ArgumentError, "recompute: expected stages from 0 to 1, got 2");
  setup = trainer_setup_of(2, "1F1B", 2);
  setup.options.microbatches = 0;
  EXPECT_ERROR(make_trainer(setup), ArgumentError, "at least one microbatch");
  setup = trainer_setup_of(2, "1F1B", 2);
  setup.options.threads_per_rank = 0;
  EXPECT_ERROR(make_trainer(setup), ArgumentError, "at least one thread");
  setup = trainer_setup_of(2, "1F1B", 2);
  Trainer trainer = make_trainer(setup);
  const auto batch = batch_of(0);
  EXPECT_ERROR(trainer.step({batch.first.slice(0, 0, 3)}, batch.second.slice(0, 0, 3)),
               ArgumentError, "rows for only 3 microbatches");
}

}  // namespace stagecraft
