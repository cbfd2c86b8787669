#include "tests/graph/graph_check.h"

#include <string>
#include <utility>

#include <gtest/gtest.h>

#include <ATen/Context.h>
#include <ATen/ops/ones_like.h>
#include <torch/csrc/autograd/autograd.h>

#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/graph/run/saved_state.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

struct Outcome {
  c10::IValue output;
  std::vector<at::Tensor> grads;    // of the inputs, then of the parameters; undefined where none
  std::vector<at::Tensor> buffers;  // afterwards
};

using Forward = std::function<c10::IValue(const Args& args, const Kwargs& kwargs)>;

c10::IValue with_grad(const c10::IValue& tree, std::vector<at::Tensor>& leaves) {
  return tree::map(tree, [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    at::Tensor mine = leaf.toTensor().detach().clone();
    if (!mine.is_floating_point() && !mine.is_complex()) return mine;
    mine.requires_grad_();
    leaves.push_back(mine);
    return mine.clone();
  });
}

Outcome run(const StageBody& model, const Forward& forward, const Arguments& arguments) {
  SavedState saved;
  saved.save_default_generator(c10::kCPU);
  for (const auto& [name, tensor] : model.buffers) saved.save(tensor);
  std::vector<at::Tensor> leaves;
  Arguments mine;
  for (const c10::IValue& value : arguments.args) mine.args.push_back(with_grad(value, leaves));
  for (const auto& [name, value] : arguments.kwargs)
    mine.kwargs.set(name, with_grad(value, leaves));
  for (const auto& [name, tensor] : model.parameters) {
    if (!tensor.defined()) continue;
    tensor.mutable_grad().reset();
    leaves.push_back(tensor);
  }
  Outcome outcome;
  const c10::IValue output = forward(mine.args, mine.kwargs);
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> root_grads;
  outcome.output = tree::map(output, [&](const c10::IValue& leaf) -> c10::IValue {
    if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
    if (leaf.toTensor().requires_grad()) {
      roots.push_back(leaf.toTensor());
      root_grads.push_back(at::ones_like(leaf.toTensor()));
    }
    return leaf.toTensor().detach().clone();
  });
  if (!roots.empty()) torch::autograd::backward(roots, root_grads);
  for (const at::Tensor& leaf : leaves) {
    outcome.grads.push_back(leaf.grad().defined() ? leaf.grad().clone() : at::Tensor());
  }
  for (const auto& [name, tensor] : model.buffers) outcome.buffers.push_back(tensor.clone());
  for (const auto& [name, tensor] : model.parameters) {
    if (tensor.defined()) tensor.mutable_grad().reset();
  }
  return outcome;
}

void expect_equal(const at::Tensor& a, const at::Tensor& b, const std::string& what) {
  ASSERT_EQ(a.defined(), b.defined()) << what;
  EXPECT_TRUE(!a.defined() || tree::leaf_equal(a, b)) << what;
}

}  // namespace

Graph expect_same(const StageBody& model, const MakeArguments& arguments,
                  const CaptureOptions& options, std::vector<int64_t> sizes) {
  std::vector<at::Tensor> before;
  for (const auto& [name, tensor] : model.parameters)
    before.push_back(tensor.defined() ? tensor.detach().clone() : tensor);
  for (const auto& [name, tensor] : model.buffers) before.push_back(tensor.clone());
  const at::Tensor random_before = at::globalContext().defaultGenerator(c10::kCPU).get_state();
  Graph graph = capture(model, arguments(4), options);
  EXPECT_TRUE(at::globalContext().defaultGenerator(c10::kCPU).get_state().equal(random_before));
  std::size_t i = 0;
  for (const auto& [name, tensor] : model.parameters) {
    expect_equal(tensor.defined() ? tensor.detach() : tensor, before[i++], name);
    EXPECT_FALSE(tensor.defined() && tensor.grad().defined()) << name;
  }
  for (const auto& [name, tensor] : model.buffers) expect_equal(tensor, before[i++], name);

  const GraphProgram program(graph);
  for (const int64_t size : sizes) {
    SCOPED_TRACE("size " + std::to_string(size));
    const Arguments given = arguments(size);
    const Outcome expected = run(model, model.forward, given);
    const Outcome got = run(
        model, [&](const Args& args, const Kwargs& kwargs) { return program.run(args, kwargs); },
        given);
    EXPECT_TRUE(tree::equal(expected.output, got.output));
    for (std::size_t g = 0; g < expected.grads.size(); ++g) {
      expect_equal(expected.grads[g], got.grads[g], "gradient " + std::to_string(g));
    }
    for (std::size_t b = 0; b < expected.buffers.size(); ++b) {
      expect_equal(expected.buffers[b], got.buffers[b], "buffer " + std::to_string(b));
    }
  }
  expect_round_trip(graph);
  return graph;
}

at::Tensor state_of(const Graph& graph, const std::string& name) {
  const GraphState* state = graph.find_state(name);
  return state == nullptr ? at::Tensor() : state->tensor;
}

void expect_round_trip(const Graph& graph) {
  const std::string text = to_text(graph);
  const Graph again =
      parse_graph(text, [&](const std::string& name) { return state_of(graph, name); });
  EXPECT_EQ(to_text(again), text);
}

}  // namespace stagecraft
