// The time of a captured stage against a call of the model itself, and the time of a capture.

#include "stagecraft/graph/capture/capture.h"

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/sum.h>
#include <c10/core/GradMode.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>

#include "benchmarks/harness.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/stage/callable.h"

namespace {

using namespace stagecraft;

torch::nn::Sequential make_model(int64_t hidden) {
  torch::nn::Sequential model;
  for (int i = 0; i < 4; ++i) {
    model->push_back(torch::nn::LayerNorm(torch::nn::LayerNormOptions({hidden})));
    model->push_back(torch::nn::Linear(hidden, hidden));
    model->push_back(torch::nn::GELU());
  }
  return model;
}

void compare(bench::Suite& suite, int64_t hidden, double goal) {
  torch::nn::Sequential model = make_model(hidden);
  const StageBody body = stage_body(model);
  const at::Tensor x = at::randn({64, hidden});
  const GraphProgram program(capture({body.forward, body.parameters, body.buffers}, {{x}, {}}));
  const std::string name = fmt::format("hidden {}", hidden);
  const auto without_grad = [](auto run) {
    return bench::timed([run] {
      const c10::NoGradGuard no_grad;
      run();
    });
  };
  const auto graph = [&program, x] { return program.run({x}).toTensor(); };
  const auto direct = [module = model.ptr(), x] { return module->forward(x); };
  suite.compare(name + ", forward", without_grad(graph), {{"module", without_grad(direct), goal}});
  const auto both = [](auto run) {
    return bench::timed([run] { torch::autograd::backward({run().sum()}); });
  };
  suite.compare(name + ", forward + backward", both(graph), {{"module", both(direct), goal}});
}

void time_capture(bench::Suite& suite) {
  torch::nn::Sequential model = make_model(16);
  const StageBody body = stage_body(model);
  const Arguments example{{at::randn({4, 16})}, {}};
  const auto start = std::chrono::steady_clock::now();
  const int repeats = 20;
  std::size_t operators = 0;
  for (int i = 0; i < repeats; ++i) operators += capture(body, example).parts().nodes.size();
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  suite.report(
      {"capture, for each operator", 1e6 * seconds / static_cast<double>(operators), "us"});
}

void measure(bench::Suite& suite) {
  at::set_num_threads(1);
  compare(suite, 16, 1.1);
  compare(suite, 512, 1.02);
  time_capture(suite);
}

}  // namespace

int main(int argc, char** argv) {
  return bench::run_suite("capture", argc, argv, measure);
}
