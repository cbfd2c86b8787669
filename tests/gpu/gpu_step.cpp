// One training step on a CUDA device, for benchmarks/gpu_step.py: reads "CASE ITERATIONS" lines and
// answers each with the seconds it took. Cases: "pipeline" (1F1B, four ranks) and "loop" (the same
// stages on one thread).

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iostream>
#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/gelu.h>
#include <ATen/ops/linear.h>
#include <ATen/ops/mse_loss.h>
#include <ATen/ops/randn.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/stage/callable.h"

namespace {

using namespace stagecraft;

constexpr int32_t kStages = 4;

struct Block {
  at::Tensor up;
  at::Tensor down;
  at::Tensor operator()(const at::Tensor& x) const {
    return x + at::linear(at::gelu(at::linear(x, up)), down);
  }
};

void finish(c10::Device device) {
  const c10::impl::VirtualGuardImpl impl(device.type());
  impl.synchronizeStream(impl.getStream(device));
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t hidden = argc > 1 ? std::atoll(argv[1]) : 1024;
  const int64_t rows = argc > 2 ? std::atoll(argv[2]) : 256;
  const int32_t microbatches = argc > 3 ? std::atoi(argv[3]) : 16;
  const c10::Device device(c10::kCUDA, 0);
  const auto options = at::TensorOptions(device);

  std::vector<Block> blocks;
  std::vector<Stage> stages;
  for (int32_t s = 0; s < kStages; ++s) {
    Block block{(at::randn({4 * hidden, hidden}, options) * 0.02).requires_grad_(),
                (at::randn({hidden, 4 * hidden}, options) * 0.02).requires_grad_()};
    blocks.push_back(block);
    stages.emplace_back(StageId(s), kStages,
                        stage_body([block](const at::Tensor& x) { return block(x); },
                                   {{"up", block.up}, {"down", block.down}}),
                        StageOptions{.device = device});
  }
  Pipeline pipeline(
      std::move(stages),
      {.schedule = "1F1B", .ranks = kStages, .loss = [](const at::Tensor& y, const at::Tensor& t) {
         return at::mse_loss(y, t);
       }});
  const at::Tensor x = at::randn({rows * microbatches, hidden}, options);
  const at::Tensor target = at::randn({rows * microbatches, hidden}, options);
  auto clear = [&] {
    for (const Block& block : blocks) {
      block.up.mutable_grad().reset();
      block.down.mutable_grad().reset();
    }
  };
  auto with_pipeline = [&] {
    pipeline.step({x}, {}, target, {.microbatches = microbatches, .outputs = OutputMode::kNone});
  };
  auto with_loop = [&] {
    const auto xs = x.tensor_split(microbatches);
    const auto ts = target.tensor_split(microbatches);
    for (std::size_t m = 0; m < xs.size(); ++m) {
      at::Tensor h = xs[m];
      for (const Block& block : blocks) h = block(h);
      (at::mse_loss(h, ts[m]) * (1.0 / microbatches)).backward();
    }
  };

  std::string name;
  int iterations = 0;
  while (std::cin >> name >> iterations) {
    finish(device);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < iterations; ++i) {
      name == "loop" ? with_loop() : with_pipeline();
      clear();
    }
    finish(device);
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    std::printf("%.9f\n", took.count());
    std::fflush(stdout);
  }
}
