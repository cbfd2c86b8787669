#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/graph/capture.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

/// x * w, cut in two along its columns; the left half times B.
GraphParts parts() {
  const Tensor w = at::ones({6}).requires_grad_();
  return capture({[&](const Args& args, const Kwargs&) -> c10::IValue {
                    const Tensor x = args[0].toTensor() * w;
                    return x.chunk(2, 1)[0] * x.size(0);
                  },
                  {{"w", w}}},
                 {{at::ones({4, 6})}, {}})
      .parts();
}

struct Case {
  std::function<void(GraphParts&)> change;
  std::string message;
};

GraphNode& node(GraphParts& graph, std::string_view name) {
  for (GraphNode& each : graph.nodes) {
    if (each.name == name) return each;
  }
  throw ArgumentError("no such node");
}

TEST(Verify, NamesWhatIsWrong) {
  const std::vector<Case> cases = {
      {[](GraphParts& g) { g.sizes[0].name = "a b"; }, "'a b' is no name for a size"},
      {[](GraphParts& g) { g.sizes.push_back(g.sizes[0]); }, "two sizes are named B"},
      {[](GraphParts& g) { g.sizes.resize(63, g.sizes[0]); }, "expected at most 62 sizes, got 63"},
      {[](GraphParts& g) { g.sizes[0].example = 0; },
       "size B: the example is 0, expected at least"},
      {[](GraphParts& g) { g.sizes[0].example = 40; },
       "size B: the example is 40, expected at most"},
      {[](GraphParts& g) { g.values[0].name = "a b"; }, "'a b' is no name for a value"},
      {[](GraphParts& g) { g.values[0].name = g.values[1].name; }, "two values are named %"},
      {[](GraphParts& g) { g.values.back().shape[0] = SizeExpr::of_size(1); },
       "has a size that the graph has not"},
      {[](GraphParts& g) { g.values.push_back({.name = "lonely"}); }, "%lonely is made by nothing"},
      {[](GraphParts& g) { g.states[0].tensor = Tensor(); }, "%w has no tensor"},
      {[](GraphParts& g) { g.states[0].tensor = at::ones({7}); }, "%w: its tensor is Tensor[7]"},
      {[](GraphParts& g) { g.states[0].other_names = {"a b"}; }, "'a b' is no name for a state"},
      {[](GraphParts& g) {
         g.states[0].other_names = {"v", "v"};
       },
       "two states are named %v"},
      {[](GraphParts& g) { g.states.push_back(g.states[0]); }, "states: %w is made twice"},
      {[](GraphParts& g) { g.args = TreeSpec::leaf(); }, "args: expected a tuple, got"},
      {[](GraphParts& g) { g.kwargs = TreeSpec::leaf(); }, "kwargs: expected a dict, got"},
      {[](GraphParts& g) { g.inputs.clear(); }, "expected 1 inputs, got 0"},
      {[](GraphParts& g) { g.inputs[0] = Argument::List{}; }, "an input is a list"},
      {[](GraphParts& g) { g.inputs[0] = SizeExpr(3); },
       "an input is neither a tensor, nor a size, nor fixed"},
      {[](GraphParts& g) { g.inputs[0] = ValueId(99); }, "inputs: there is no value 99"},
      {[](GraphParts& g) { g.nodes[0].name = ""; }, "'' is no name for a node"},
      {[](GraphParts& g) { g.nodes[1].name = g.nodes[0].name; }, "two nodes are named mul"},
      {[](GraphParts& g) {
         g.nodes[0].op = {"aten::mull", ""};
       },
       "there is no operator aten::mull"},
      {[](GraphParts& g) { g.nodes[0].arguments.pop_back(); }, "takes 2 arguments, got 1"},
      {[](GraphParts& g) { g.nodes[0].results.clear(); }, "returns 1 values, got 0"},
      {[](GraphParts& g) { std::swap(g.nodes[0], g.nodes[1]); }, "is read before it is made"},
      {[](GraphParts& g) { g.nodes[0].arguments[0] = ValueId(-1); }, "mul: there is no value -1"},
      {[](GraphParts& g) { g.nodes[0].arguments[0] = Argument::fixed("3"); },
       "takes 'self' as Tensor, got another kind"},
      {[](GraphParts& g) { g.nodes[0].arguments[0] = Argument::fixed(c10::Device(c10::kCPU)); },
       "takes 'self' as Tensor, got another kind"},
      {[](GraphParts& g) {
         g.nodes[0].op = {"aten::view", ""};
         g.nodes[0].arguments[1] = Argument::fixed(std::vector<double>{2.5});
       },
       "takes 'size' as SymInt[], got another kind"},
      // A list for a tensor, a tensor for a list, a number for either.
      {[](GraphParts& g) { g.nodes[0].results[0] = Argument::List{g.nodes[0].results[0]}; },
       "mul: aten::mul.Tensor returns Tensor, got another kind"},
      {[](GraphParts& g) {
         node(g, "chunk").results[0] = (*node(g, "chunk").results[0].list())[0];
       },
       "chunk: aten::chunk returns Tensor[], got another kind"},
      {[](GraphParts& g) { g.nodes[0].results[0] = Argument::fixed(3); }, "got another kind"},
      {[](GraphParts& g) { g.outputs.clear(); }, "expected 1 outputs, got 0"},
      {[](GraphParts& g) { g.outputs[0] = ValueId(99); }, "return: there is no value 99"},
      {[](GraphParts& g) { g.values[1].shape[0] = SizeExpr(4); },
       "the inputs do not tell the size B"},
  };
  EXPECT_EQ(verify(parts()), std::nullopt);
  for (const Case& each : cases) {
    GraphParts changed = parts();
    each.change(changed);
    const auto problem = verify(changed);
    ASSERT_TRUE(problem) << each.message;
    EXPECT_THAT(*problem, testing::HasSubstr(each.message));
    EXPECT_ERROR(Graph(changed), GraphError, each.message);
  }
}

}  // namespace
}  // namespace stagecraft
