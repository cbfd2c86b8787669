// Compiled stages on a GPU: against their graphs, and replayed as CUDA graphs against run.

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include <fmt/format.h>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/ones.h>

#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/train/trainer.h"
#include "tests/compiled/packages.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

class CompiledGpu : public GpuTest {
 protected:
  void SetUp() override {
    GpuTest::SetUp();
    if (testing::Test::IsSkipped() || testing::Test::HasFatalFailure()) return;
    if (std::filesystem::exists(path("gpt"))) return;
    const std::string why =
        fmt::format("there are no packages in {}; ctest -R compiled_gpu.packages makes them",
                    SC_COMPILED_GPU_FOLDER);
    if (std::getenv("STAGECRAFT_REQUIRE_GPU") != nullptr) FAIL() << why;
    GTEST_SKIP() << why;
  }

  static std::string path(const std::string& name) {
    return std::string(SC_COMPILED_GPU_FOLDER) + "/" + name + ".scp";
  }
  static at::Tensor ids(uint64_t seed) { return some_ids(8, seed).to(c10::kCUDA); }

  /// Gradients and losses of a few steps with weights that change between them.
  static std::vector<at::Tensor> steps_of(const Pipe& pipe, const std::string& schedule,
                                          GraphMode graphs, int32_t steps) {
    PipelineOptions options{.schedule = schedule, .ranks = 2, .loss = own_loss()};
    options.seed = 3;
    options.graphs = graphs;
    Pipeline run(pipe, options);
    std::vector<at::Tensor> found;
    for (int32_t i = 0; i < steps; ++i) {
      const auto seed = static_cast<uint64_t>(i);
      const Stepped step = step_of(run, pipe, {{ids(seed), ids(seed + 50)}, {}}, 4);
      for (const at::Tensor& loss : step.losses) found.push_back(loss.cpu());
      const at::NoGradGuard no_grad;
      const std::vector<at::Tensor> parameters = pipe.parameters();
      for (std::size_t p = 0; p < parameters.size(); ++p) {
        if (!step.grads[p].defined()) continue;
        found.push_back(step.grads[p].cpu());
        parameters[p].sub_(step.grads[p], 0.01);
      }
    }
    if (graphs != GraphMode::kOff) {
      EXPECT_GT(run.launches().replayed, 0) << run.launches().reason;
    }
    return found;
  }
};

TEST_F(CompiledGpu, HasTheGradientsOfTheGraphs) {
  for (const char* schedule : {"Interleaved1F1B", "ZBVZeroBubble"}) {
    const CompiledPipe pipe = CompiledPipe::load(path("gpt"));
    const CompiledPipe other = CompiledPipe::load(path("gpt"));
    const auto own = steps_of(pipe, schedule, GraphMode::kOff, 1);
    const auto expected = steps_of(graphs_of(other), schedule, GraphMode::kOff, 1);
    ASSERT_EQ(own.size(), expected.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      EXPECT_LT(relative_difference(own[i], expected[i]), 1e-4) << schedule << " " << i;
    }
  }
}

TEST_F(CompiledGpu, ReplaysWithTheBitsOfStepsThatAreRun) {
  for (const char* schedule : {"Interleaved1F1B", "ZBVZeroBubble"}) {
    const auto run = steps_of(CompiledPipe::load(path("gpt")), schedule, GraphMode::kOff, 6);
    const auto replayed = steps_of(CompiledPipe::load(path("gpt")), schedule, GraphMode::kOn, 6);
    ASSERT_EQ(run.size(), replayed.size());
    for (std::size_t i = 0; i < run.size(); ++i) {
      EXPECT_TRUE(at::equal(run[i], replayed[i])) << schedule << " " << i;
    }
  }
}

TEST_F(CompiledGpu, DrawsNewNumbersInEveryReplay) {
  std::vector<at::Tensor> losses[2];
  for (const bool replays : {false, true}) {
    const CompiledPipe pipe = CompiledPipe::load(path("drop2"));
    PipelineOptions options{.schedule = "1F1B", .ranks = 2};
    options.seed = 9;
    options.graphs = replays ? GraphMode::kOn : GraphMode::kOff;
    options.loss = own_loss();
    Pipeline run(pipe, options);
    const Arguments inputs{{ids(1), ids(2)}, {}};
    for (int i = 0; i < 6; ++i) {
      for (const at::Tensor& loss : step_of(run, pipe, inputs, 2).losses) {
        losses[replays ? 1 : 0].push_back(loss.cpu());
      }
    }
  }
  for (std::size_t i = 0; i < losses[0].size(); ++i) {
    EXPECT_TRUE(at::equal(losses[0][i], losses[1][i])) << i;
    if (i >= 2) {
      EXPECT_FALSE(at::equal(losses[1][i], losses[1][i - 2])) << i;
    }
  }
}

TEST_F(CompiledGpu, PreparesTheWeightsOfEveryReplay) {
  std::vector<double> curves[2];
  for (const bool replays : {false, true}) {
    const CompiledPipe pipe = CompiledPipe::load(path("half"));
    TrainerOptions options{.schedule = "1F1B", .ranks = 1};
    options.microbatches = 2;
    options.graphs = replays ? GraphMode::kOn : GraphMode::kOff;
    options.learning_rate = {.peak = 0.01, .least = 0.001, .warmup = 1, .steps = 8};
    Trainer trainer(pipe, Loss([](const c10::IValue& output, const c10::IValue& t, const Kwargs&) {
                      const at::Tensor y = outputs_of(output).front().toTensor();
                      return c10::IValue(y.to(at::kFloat).sub(t.toTensor()).square().mean());
                    }),
                    options);
    const at::Tensor x = at::ones({8, 16}).cumsum(0).sin().to(c10::kCUDA);
    for (int i = 0; i < 8; ++i) {
      curves[replays ? 1 : 0].push_back(trainer.step({x}, x).loss);
    }
  }
  EXPECT_EQ(curves[0], curves[1]);
  EXPECT_LT(curves[0].back(), curves[0].front());
}

}  // namespace
}  // namespace stagecraft
