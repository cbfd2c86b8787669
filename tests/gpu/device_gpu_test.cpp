// Times, memory and failures of a CUDA device.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <gmock/gmock.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/base/device_error.h"
#include "stagecraft/runtime/launch/device_probe.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/stage/callable.h"
#include "tests/gpu/gpu_test.h"

namespace stagecraft {
namespace {

using DeviceGpu = GpuTest;
using testing::HasSubstr;

struct WideModel {
  std::vector<at::Tensor> weights;
  int num_layers;  // of a stage

  WideModel(int32_t stages, int64_t width, int layers = 4) : num_layers(layers) {
    for (int32_t s = 0; s < stages; ++s) {
      weights.push_back(
          (at::randn({width, width}, at::TensorOptions(c10::kCUDA)) * 0.01).requires_grad_());
    }
  }

  /// `hook` is called in every forward of stage 1. Narrow inputs are repeated to the width.
  std::vector<Stage> stages(const std::function<void(const at::Tensor&)>& hook = {}) const {
    std::vector<Stage> result;
    const auto n = static_cast<int32_t>(weights.size());
    for (int32_t s = 0; s < n; ++s) {
      const at::Tensor w = weights[static_cast<std::size_t>(s)];
      auto forward = [w, s, hook, layers = num_layers](const at::Tensor& x) {
        if (s == 1 && hook) hook(x);
        const int64_t times = w.size(0) / x.size(1);
        at::Tensor y = times == 1 ? x : x.repeat({1, times});
        for (int layer = 0; layer < layers; ++layer) y = at::tanh(at::linear(y, w));
        return y;
      };
      result.emplace_back(StageId(s), n, stage_body(forward, {{"w", w}}),
                          StageOptions{.device = c10::Device(c10::kCUDA, 0)});
    }
    return result;
  }

  void reset_grads() const {
    for (const at::Tensor& w : weights) w.mutable_grad().reset();
  }
};

at::Tensor square_loss(const at::Tensor& y) {
  return y.square().mean();
}

/// Milliseconds of a step, with the end of its work on the device.
double timed_step(Pipeline& pipeline, const at::Tensor& x, int32_t microbatches) {
  const c10::impl::VirtualGuardImpl device(c10::kCUDA);
  device.synchronizeDevice(0);
  const auto begin = std::chrono::steady_clock::now();
  pipeline.step({x}, {}, {}, {.microbatches = microbatches});
  device.synchronizeDevice(0);
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
      .count();
}

void expect_device_times(const StepReport& report, double milliseconds) {
  // The device cannot have taken longer than the step, and most of the step is its work.
  EXPECT_LE(report.makespan / 1000, milliseconds + 0.2);
  EXPECT_GE(report.makespan / 1000, 0.5 * milliseconds);
  EXPECT_EQ(report.not_run, 0);
  for (const RankReport& rank : report.ranks) {
    EXPECT_TRUE(rank.is_device_time);
    EXPECT_GT(rank.compute, 0);
    EXPECT_NEAR(rank.compute + rank.bubble + rank.exposed_transfer + rank.other, report.makespan,
                1);
    ASSERT_TRUE(rank.device_memory);
    EXPECT_GT(rank.device_memory->reserved, 0);
  }
  std::printf("%s", to_text(report).c_str());
}

TEST_F(DeviceGpu, AStepThatIsRunHasTheTimesOfTheDevice) {
  const WideModel model(2, 2048);
  const at::Tensor x = at::randn({8 * 1024, 2048}, at::TensorOptions(c10::kCUDA));
  for (const int32_t ranks : {1, 2}) {
    Pipeline pipeline(model.stages(), {.schedule = ranks == 1 ? "Interleaved1F1B" : "1F1B",
                                       .ranks = ranks,
                                       .loss = square_loss,
                                       .graphs = GraphMode::kOff});
    for (int step = 0; step < 3; ++step) timed_step(pipeline, x, 8);
    const double milliseconds = timed_step(pipeline, x, 8);
    const StepReport report = pipeline.report();
    expect_device_times(report, milliseconds);
    for (const RankReport& rank : report.ranks) {
      EXPECT_FALSE(rank.is_replayed);
      ASSERT_TRUE(rank.host);
      EXPECT_GT(rank.host->compute, 0);
    }
  }
  model.reset_grads();
}

TEST_F(DeviceGpu, AReplayedStepHasTheTimesOfTheDevice) {
  const WideModel model(2, 2048);
  const at::Tensor x = at::randn({8 * 1024, 2048}, at::TensorOptions(c10::kCUDA));
  Pipeline pipeline(model.stages(), {.ranks = 2, .loss = square_loss, .graphs = GraphMode::kOn});
  for (int step = 0; step < 4; ++step) {
    timed_step(pipeline, x, 8);
    model.reset_grads();
  }
  const double milliseconds = timed_step(pipeline, x, 8);
  EXPECT_EQ(pipeline.launches().replayed, 3);
  const StepReport report = pipeline.report();
  expect_device_times(report, milliseconds);
  double compute = 0;
  for (const RankReport& rank : report.ranks) {
    EXPECT_TRUE(rank.is_replayed);
    compute += rank.compute;
  }
  // The ranks take turns on one stream.
  EXPECT_LE(compute, 1.01 * report.makespan);
}

// Both are what the allocator takes from the device. Tensors of 16 MiB have segments of their own,
// so that it does not matter how smaller ones share them.
TEST_F(DeviceGpu, AReplayedStepTakesTheMemoryOfAStepThatIsRun) {
  constexpr int64_t kRows = 8 * 2048;
  constexpr int64_t kWidth = 2048;
  for (const int32_t ranks : {1, 2, 4}) {
    for (const bool is_wide : {false, true}) {
      SCOPED_TRACE(std::to_string(ranks) + (is_wide ? " ranks, wide" : " ranks"));
      const WideModel model(4, kWidth, 8);
      // A batch of tokens is narrow, and training asks for no outputs. A graph has its own copy of
      // the batch.
      const at::Tensor x =
          at::randn({kRows, is_wide ? kWidth : 128}, at::TensorOptions(c10::kCUDA));
      const StepOptions options{.microbatches = 8,
                                .outputs = is_wide ? OutputMode::kMerged : OutputMode::kNone};
      Pipeline pipeline(model.stages(), {.schedule = ranks == 4 ? "1F1B" : "Interleaved1F1B",
                                         .ranks = ranks,
                                         .loss = square_loss,
                                         .graphs = GraphMode::kOn});
      for (int step = 0; step < 3; ++step) {
        pipeline.step({x}, {}, {}, options);
        model.reset_grads();
      }
      const LaunchCounts launches = pipeline.launches();
      ASSERT_EQ(launches.replayed, 1) << launches.reason;
      const auto run = static_cast<double>(launches.peak_run);
      const auto replayed = static_cast<double>(launches.peak_replayed);
      std::printf("%d ranks%s: peak of a step: %.1f MiB run, %.1f MiB replayed, ratio %.3f\n",
                  ranks, is_wide ? ", wide batch and outputs" : "", run / (1 << 20),
                  replayed / (1 << 20), replayed / run);
      EXPECT_GT(launches.peak_run, 0);
      EXPECT_LE(replayed, 1.1 * run + (is_wide ? static_cast<double>(x.nbytes()) : 0));
    }
  }
}

TEST_F(DeviceGpu, OutOfMemoryIsNamedAndASmallerStepWorks) {
  const WideModel model(2, 256);
  const auto asks = std::make_shared<bool>(true);
  Pipeline pipeline(model.stages([asks](const at::Tensor& x) {
    // More than any device has.
    if (*asks) at::empty({int64_t{4} << 40}, x.options().dtype(at::kByte));
  }),
                    {.ranks = 2, .loss = square_loss});
  const at::Tensor x = at::randn({512, 256}, at::TensorOptions(c10::kCUDA));
  try {
    pipeline.step({x}, {}, {}, {.microbatches = 4});
    FAIL() << "the step did not fail";
  } catch (const StageError& error) {
    std::printf("%s\n", error.what());
    EXPECT_THAT(error.what(), HasSubstr("rank 1, stage 1, microbatch 0, action 1F0: out of memory: "
                                        "4.0 TiB asked"));
    EXPECT_THAT(error.what(), HasSubstr("free on the device; this process has allocated"));
    EXPECT_THROW(std::rethrow_exception(error.cause()), OutOfMemoryError);
  }
  for (const at::Tensor& w : model.weights) EXPECT_FALSE(w.grad().defined());
  *asks = false;
  pipeline.step({x}, {}, {}, {.microbatches = 2});
  EXPECT_TRUE(model.weights[0].grad().isfinite().all().item<bool>());
}

// In a process of its own: the device is lost to the process that has seen such an error.
void fail_in_a_kernel() {
  const WideModel model(2, 256);
  const auto calls = std::make_shared<int>(0);
  Pipeline pipeline(model.stages([calls](const at::Tensor& x) {
    if (++*calls == 3) x.index_select(0, at::full({1}, 1 << 20, x.options().dtype(at::kLong)));
  }),
                    {.ranks = 2, .loss = square_loss, .graphs = GraphMode::kOff});
  const at::Tensor x = at::randn({512, 256}, at::TensorOptions(c10::kCUDA));
  std::string first;
  try {
    for (int step = 0; step < 200; ++step) pipeline.step({x}, {}, {}, {.microbatches = 4});
  } catch (const std::exception& error) {
    first = error.what();
  }
  std::fprintf(stderr, "first: %s\n", first.c_str());
  try {
    pipeline.step({x}, {}, {}, {.microbatches = 4});
  } catch (const std::exception& error) {
    std::fprintf(stderr, "then: %s\n", error.what());
  }
  std::fflush(stderr);
  std::_Exit(first.empty() ? 1 : 0);
}

TEST_F(DeviceGpu, AnAsynchronousErrorIsReportedWithTheActionsSinceTheLastGoodPoint) {
  testing::FLAGS_gtest_death_test_style = "threadsafe";
  EXPECT_EXIT(fail_in_a_kernel(), testing::ExitedWithCode(0),
              "first: rank.*reports an error of a kernel that was launched earlier.*cannot use the "
              "device any more");
}

}  // namespace
}  // namespace stagecraft
