// Two stages whose loss is outside of the model.

#include <string>
#include <vector>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/train/trainer.h"
#include "tests/compiled/packages.h"
#include "tests/support/expect_error.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

at::Tensor mlp_rows(int64_t rows, double scale = 0.3) {
  return at::arange(rows * 6, at::kFloat).mul(scale).sin().view({rows, 6});
}

Loss squares() {
  return [](const at::Tensor& y, const at::Tensor& t) { return at::mse_loss(y, t); };
}

Stepped mlp_step(const Pipe& pipe, const std::string& schedule, int32_t ranks, int64_t rows = 8,
                 int32_t microbatches = 4, bool recompute = false) {
  PipelineOptions options{.schedule = schedule, .ranks = ranks, .loss = squares()};
  options.seed = 1;
  options.threads_per_rank = 1;
  options.stage_options = [=](StageId) { return StageOptions{.recompute = recompute}; };
  Pipeline run(pipe, options);
  Stepped stepped;
  stepped.losses =
      run.step({mlp_rows(rows)}, {}, mlp_rows(rows, 0.7), {.microbatches = microbatches}).losses;
  for (const at::Tensor& parameter : pipe.parameters()) {
    stepped.grads.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  return stepped;
}

void expect_near(const Stepped& a, const Stepped& b, const std::string& where) {
  ASSERT_EQ(a.grads.size(), b.grads.size());
  ASSERT_EQ(a.losses.size(), b.losses.size());
  for (std::size_t i = 0; i < a.losses.size(); ++i) {
    EXPECT_LT(relative_difference(a.losses[i], b.losses[i]), 1e-5) << where;
  }
  for (std::size_t i = 0; i < a.grads.size(); ++i) {
    ASSERT_TRUE(a.grads[i].defined() && b.grads[i].defined()) << where << ", parameter " << i;
    EXPECT_LT(relative_difference(a.grads[i], b.grads[i]), 1e-5) << where << ", parameter " << i;
  }
}

struct Case {
  const char* schedule;
  int32_t ranks;
};
constexpr Case kCases[] = {{"GPipe", 2},           {"1F1B", 2},
                           {"Interleaved1F1B", 1}, {"InterleavedZeroBubble", 2},
                           {"ZBVZeroBubble", 1},   {"InterleavedZeroBubble", 1}};

TEST(CompiledMlp, HasTheGradientsOfItsGraphsInEverySchedule) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  const Stepped expected = mlp_step(graphs_of(pipe), "1F1B", 2);
  for (const Case& c : kCases)
    expect_near(mlp_step(pipe, c.schedule, c.ranks), expected, c.schedule);
}

TEST(CompiledMlp, HasTheSameBitsInEveryScheduleIfBIsIAndW) {
  const CompiledPipe pipe =
      CompiledPipe::load(package_path("mlp"), {.stages = {.same_bits = true}});
  const Stepped expected = mlp_step(pipe, "1F1B", 2);
  for (const Case& c : kCases) {
    const Stepped own = mlp_step(pipe, c.schedule, c.ranks);
    EXPECT_EQ(difference("gradient", own.grads, expected.grads), "") << c.schedule;
    EXPECT_EQ(difference("loss", own.losses, expected.losses), "") << c.schedule;
  }
}

TEST(CompiledMlp, HasTheSameBitsForAnyNumberOfRanksAndWithRecompute) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  const Stepped expected = mlp_step(pipe, "1F1B", 2);
  for (const Case& c : {Case{"GPipe", 2}, Case{"Interleaved1F1B", 1}}) {
    EXPECT_EQ(difference("gradient", mlp_step(pipe, c.schedule, c.ranks).grads, expected.grads), "")
        << c.schedule;
  }
  EXPECT_EQ(difference("gradient", mlp_step(pipe, "1F1B", 2, 8, 4, true).grads, expected.grads),
            "");
}

TEST(CompiledMlp, TakesMicrobatchesOfDifferentSizes) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  for (const int64_t rows : {7, 5, 64}) {
    expect_near(mlp_step(pipe, "1F1B", 2, rows, rows == 64 ? 1 : 3),
                mlp_step(graphs_of(pipe), "1F1B", 2, rows, rows == 64 ? 1 : 3),
                std::to_string(rows) + " rows");
  }
  EXPECT_ERROR(mlp_step(pipe, "1F1B", 2, 65, 1), MetadataError, "65");
}

TEST(CompiledMlp, EvaluatesLikeItsGraphs) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  Pipeline run(pipe, {.schedule = "1F1B", .ranks = 2, .loss = squares()});
  const at::Tensor own = run.eval({mlp_rows(6)}, {}, {}, {.microbatches = 2}).output.toTensor();
  const at::NoGradGuard no_grad;
  EXPECT_LT(relative_difference(own, pipe.run({mlp_rows(6)}).toTensor()), 1e-5);
  for (const at::Tensor& parameter : pipe.parameters()) EXPECT_FALSE(parameter.grad().defined());
}

TEST(CompiledMlp, ReadsInputsAndGradientsOfAnyStrides) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  Stage own = pipe.build_stage(StageId(1));
  Stage graph = graphs_of(pipe).build_stage(StageId(1));
  std::vector<at::Tensor> found[2];
  for (Stage* stage : {&own, &graph}) {
    std::vector<at::Tensor>& results = found[stage == &own ? 0 : 1];
    for (int32_t m = 0; m < 3; ++m) {
      const at::Tensor x = at::arange(8 * 4, at::kFloat).mul(0.1 * (m + 1)).sin().view({8, 4}).t();
      results.push_back(
          stage->forward(MicrobatchId(m), {{x.requires_grad_()}, {}}).toTensor().detach());
    }
    for (int32_t m = 3; m-- > 0;) {
      const at::Tensor dy = at::arange(6 * 4, at::kFloat).cos().view({6, 4}).t();
      const bool is_split = m != 1;
      results.push_back((is_split ? stage->backward_input(MicrobatchId(m), {dy})
                                  : stage->backward(MicrobatchId(m), {dy}))
                            .front()
                            .toTensor());
    }
    for (const int32_t m : {0, 2}) stage->backward_weight(MicrobatchId(m));
    for (const auto& [name, parameter] : stage->parameters()) {
      results.push_back(parameter.grad());
      parameter.mutable_grad().reset();
    }
  }
  ASSERT_EQ(found[0].size(), 8U);
  for (std::size_t i = 0; i < found[0].size(); ++i) {
    EXPECT_LT(relative_difference(found[0][i], found[1][i]), 1e-5) << i;
  }
}

TEST(CompiledMlp, RefusesValuesThatChangeBetweenTheHalvesOfABackward) {
  const CompiledPipe pipe = CompiledPipe::load(package_path("mlp"));
  Stage stage = pipe.build_stage(StageId(1));
  const at::Tensor weight = stage.parameters().front().second;
  for (int32_t m = 0; m < 3; ++m) {
    const at::Tensor x = at::ones({6, 8}).requires_grad_();
    stage.forward(MicrobatchId(m), {{x}, {}});
    stage.backward_input(MicrobatchId(m), {at::ones({6, 6})});
    const at::NoGradGuard no_grad;
    if (m == 0) {
      stage.backward_weight(MicrobatchId(m));
    } else if (m == 1) {
      // The gradient of the weight reads the input.
      x.add_(1);
      EXPECT_ERROR(stage.backward_weight(MicrobatchId(m)), Error,
                   "stage 1: an input or output was changed in place between the forward of a "
                   "microbatch and its backward, which reads it; change a copy");
    } else {
      weight.add_(1);
      EXPECT_ERROR(stage.backward_weight(MicrobatchId(m)), Error,
                   "stage 1: a parameter was changed in place");
    }
  }
  weight.mutable_grad().reset();
}

TEST(CompiledMlp, ContinuesFromACheckpointWithTheSameBits) {
  const auto make = [] {
    TrainerOptions options{.schedule = "InterleavedZeroBubble", .ranks = 2};
    options.microbatches = 4;
    options.learning_rate = {.peak = 0.01, .least = 0.001, .warmup = 1, .steps = 6};
    return Trainer(CompiledPipe::load(package_path("mlp")), squares(), options);
  };
  const auto train = [](Trainer& trainer, int64_t until) {
    std::vector<double> numbers;
    while (trainer.steps() < until) {
      const double scale = 0.1 * static_cast<double>(trainer.steps() + 1);
      numbers.push_back(trainer.step({mlp_rows(8, scale)}, mlp_rows(8, 0.7)).loss);
    }
    return numbers;
  };
  Trainer whole = make();
  const std::vector<double> expected = train(whole, 6);
  Trainer first = make();
  std::vector<double> parts = train(first, 3);
  const Checkpoint checkpoint = first.checkpoint();
  Trainer second = make();
  second.restore(checkpoint);
  for (const double number : train(second, 6)) parts.push_back(number);
  EXPECT_EQ(parts, expected);
}

}  // namespace
}  // namespace stagecraft
