// Captured models on a CUDA device: moved there, or captured there.

#include <string>
#include <vector>

#include <ATen/TensorOperators.h>
#include <ATen/ops/dropout.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/tanh.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/passes/move.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/stage/callable.h"
#include "stagecraft/tree/tree.h"
#include "tests/gpu/gpu_test.h"
#include "tests/partition/pipe_check.h"
#include "tests/support/reference.h"
#include "tests/support/zoo.h"

namespace stagecraft {
namespace {

using PartitionGpu = GpuTest;

class ZooGpu : public GpuTest, public testing::WithParamInterface<zoo::ZooModel> {
 protected:
  Arguments inputs(int64_t rows) const {
    auto move = [&](const c10::IValue& leaf) -> c10::IValue {
      return leaf.isTensor() ? c10::IValue(leaf.toTensor().to(gpu_)) : leaf;
    };
    const Arguments arguments = GetParam().inputs(rows);
    Arguments moved;
    for (const c10::IValue& value : arguments.args) moved.args.push_back(tree::map(value, move));
    for (const auto& [name, value] : arguments.kwargs) {
      moved.kwargs.set(name, tree::map(value, move));
    }
    return moved;
  }
};

TEST_P(ZooGpu, MovesToTheDevice) {
  const zoo::ZooModel& model = GetParam();
  const Graph graph =
      capture({model.body.forward, model.body.parameters, model.body.buffers}, model.inputs(4));
  const Pipe pipe = Pipe(graph, {.policy = equal_cost(4)}).to(gpu_);
  for (const at::Tensor& parameter : pipe.parameters()) EXPECT_TRUE(parameter.is_cuda());
  if (!model.is_random) {
    const Arguments given = model.inputs(6);
    const at::Tensor expected = model.body.forward(given.args, given.kwargs).toTensor();
    const Arguments moved = inputs(6);
    const at::Tensor got = pipe.run(moved.args, moved.kwargs).toTensor();
    EXPECT_TRUE(got.is_cuda());
    EXPECT_EQ(difference("output", got.cpu(), expected, 1e-4), "");
  }
  // Some kernels add gradients in any order.
  EXPECT_EQ(train_everywhere(pipe, [&](int64_t rows) { return inputs(rows); },
                             {.uncut_tolerance = 1e-4, .cut_tolerance = 1e-4}),
            "");
}

INSTANTIATE_TEST_SUITE_P(Models, ZooGpu, testing::ValuesIn(zoo::all()),
                         [](const auto& model) { return model.param.name; });

TEST_F(PartitionGpu, CapturesOnTheDevice) {
  NamedTensors weights;
  for (int i = 0; i < 4; ++i) {
    weights.emplace_back("layers." + std::to_string(i) + ".weight",
                         (at::randn({32, 32}) * 0.3).to(gpu_).requires_grad_());
  }
  const StageBody model = stage_body(
      [weights](at::Tensor x) {
        for (const auto& [name, weight] : weights) {
          x = at::dropout(at::tanh(x.mm(weight)), 0.25, true);
        }
        return x + at::randn({1}, x.options());
      },
      weights);
  auto inputs = [&](int64_t rows) { return Arguments{{at::ones({rows, 32}).to(gpu_)}, {}}; };
  const at::Tensor state = at::globalContext().defaultGenerator(gpu_).get_state();
  const Pipe pipe = stagecraft::pipeline(model, inputs(4), {.policy = equal_cost(4)});
  EXPECT_TRUE(at::globalContext().defaultGenerator(gpu_).get_state().equal(state));
  EXPECT_EQ(train_everywhere(pipe, inputs), "");
}

}  // namespace
}  // namespace stagecraft
