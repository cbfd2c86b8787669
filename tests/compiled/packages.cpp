#include "tests/compiled/packages.h"

#include <algorithm>
#include <cstdlib>

#include <gtest/gtest.h>

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ops/randint.h>

namespace stagecraft {

std::string package_path(const std::string& name) {
  const char* folder = std::getenv("SC_COMPILED_FOLDER");
  return std::string(folder != nullptr ? folder : SC_COMPILED_FOLDER) + "/" + name + ".scp";
}

Pipe graphs_of(const CompiledPipe& pipe) {
  return pipe.with_bodies(nullptr);
}

at::Tensor some_ids(int64_t rows, uint64_t seed) {
  constexpr int64_t kLength = 8;
  constexpr int64_t kTokens = 17;
  return at::randint(kTokens, {rows, kLength}, at::detail::createCPUGenerator(seed),
                     at::TensorOptions(at::kLong));
}

Arguments token_arguments(int64_t rows, uint64_t seed) {
  return {{some_ids(rows, seed), some_ids(rows, seed + 1000)}, {}};
}

Loss own_loss() {
  return Loss([](const at::Tensor& loss) { return loss; });
}

Stepped step_of(Pipeline& run, const Pipe& pipe, const Arguments& inputs, int32_t microbatches) {
  StepResult result = run.step(inputs.args, inputs.kwargs, {},
                               {.microbatches = microbatches, .outputs = OutputMode::kNone});
  Stepped stepped{std::move(result.losses), {}};
  for (const at::Tensor& parameter : pipe.parameters()) {
    stepped.grads.push_back(parameter.grad());
    parameter.mutable_grad().reset();
  }
  return stepped;
}

Stepped gpt_step(const Pipe& pipe, const PipelineOptions& options, int32_t microbatches) {
  PipelineOptions own = options;
  own.loss = own_loss();
  own.seed = 3;
  own.threads_per_rank = 1;
  Pipeline run(pipe, own);
  return step_of(run, pipe, token_arguments(8), microbatches);
}

double relative_difference(const at::Tensor& a, const at::Tensor& b) {
  const at::Tensor x = a.detach().to(at::kDouble);
  const at::Tensor y = b.detach().to(at::kDouble);
  const auto largest = y.abs().max().item().toDouble();
  return x.sub(y).abs().max().item().toDouble() / std::max(largest, 1e-30);
}

}  // namespace stagecraft
