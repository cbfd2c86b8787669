#include <functional>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph_text.h"
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

struct VerifyCase {
  std::function<void(GraphParts&)> change;
  std::string message;
};

GraphNode& node(GraphParts& graph, std::string_view name) {
  for (GraphNode& each : graph.nodes) {
    if (each.name == name) return each;
  }
  throw ArgumentError("no such node");
}

/// Expects that the graph holds, and that each change of it is refused.
void expect_refused(const std::function<GraphParts()>& make, const std::vector<VerifyCase>& cases) {
  EXPECT_EQ(verify(make()), std::nullopt);
  for (const VerifyCase& each : cases) {
    GraphParts changed = make();
    each.change(changed);
    const auto problem = verify(changed);
    ASSERT_TRUE(problem) << each.message;
    EXPECT_THAT(*problem, testing::HasSubstr(each.message));
    EXPECT_ERROR(Graph(changed), GraphError, each.message);
  }
}

TEST(Verify, NamesWhatIsWrong) {
  const std::vector<VerifyCase> cases = {
      {[](GraphParts& g) { g.sizes[0].name = "a b"; }, "'a b' is not a valid name for a size"},
      {[](GraphParts& g) { g.sizes.push_back(g.sizes[0]); }, "two sizes are named B"},
      {[](GraphParts& g) { g.sizes.resize(63, g.sizes[0]); }, "expected at most 62 sizes, got 63"},
      {[](GraphParts& g) { g.sizes[0].example = 0; },
       "size B: the example is 0, expected at least"},
      {[](GraphParts& g) { g.sizes[0].example = 40; },
       "size B: the example is 40, expected at most"},
      {[](GraphParts& g) { g.values[ValueId(0)].name = "a b"; },
       "'a b' is not a valid name for a value"},
      {[](GraphParts& g) { g.values[ValueId(0)].name = g.values[ValueId(1)].name; },
       "two values are named %"},
      {[](GraphParts& g) {
         g.values[ValueId(g.values.size() - 1)].shape[0] = SizeExpr::of_size(1);
       },
       "has a size that the graph lacks"},
      {[](GraphParts& g) { g.values.push_back({.name = "lonely"}); },
       "%lonely is not made by any node"},
      {[](GraphParts& g) { g.states[0].tensor = Tensor(); }, "%w has no tensor"},
      {[](GraphParts& g) { g.states[0].tensor = at::ones({7}); }, "%w: its tensor is Tensor[7]"},
      {[](GraphParts& g) { g.states[0].other_names = {"a b"}; },
       "'a b' is not a valid name for a state"},
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
      {[](GraphParts& g) { g.nodes[0].name = ""; }, "'' is not a valid name for a node"},
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
       "takes 'self' as Tensor, got a different kind"},
      {[](GraphParts& g) { g.nodes[0].arguments[0] = Argument::fixed(c10::Device(c10::kCPU)); },
       "takes 'self' as Tensor, got a different kind"},
      {[](GraphParts& g) {
         g.nodes[0].op = {"aten::view", ""};
         g.nodes[0].arguments[1] = Argument::fixed(std::vector<double>{2.5});
       },
       "takes 'size' as SymInt[], got a different kind"},
      // A list for a tensor, a tensor for a list, a number for either.
      {[](GraphParts& g) { g.nodes[0].results[0] = Argument::List{g.nodes[0].results[0]}; },
       "mul: aten::mul.Tensor returns Tensor, got a different kind"},
      {[](GraphParts& g) {
         const Argument first = (*node(g, "chunk").results[0].list())[0];
         node(g, "chunk").results[0] = first;
       },
       "chunk: aten::chunk returns Tensor[], got a different kind"},
      {[](GraphParts& g) { g.nodes[0].results[0] = Argument::fixed(3); }, "got a different kind"},
      {[](GraphParts& g) { g.outputs.clear(); }, "expected 1 outputs, got 0"},
      {[](GraphParts& g) { g.outputs[0] = ValueId(99); }, "return: there is no value 99"},
      {[](GraphParts& g) { g.values[ValueId(1)].shape[0] = SizeExpr(4); },
       "the inputs do not determine the size B"},
  };
  expect_refused(parts, cases);
}

SizeRule rule(SizeRule::Op op, SizeExpr left, SizeExpr right) {
  return {op, std::move(left), std::move(right)};
}

/// Sizes that follow and are measured, a guard, and both kinds of numbers where tensors are taken.
GraphParts measuring() {
  return parse_graph(R"(graph exported
size S = 8, at least 2
size half = 4, as floor_div(S, 2)
size is_even = 1, as equal(S, 2*half)
size n = 3, from %nonzero dimension 0
size more = 4, as max(n, half)
require is_even: "it is even"
constant %c: float32[8]
args (%x: float32[S, 2],)
kwargs {}
%nonzero = aten::nonzero(self=%x): int64[n, 2]
%sum = aten::sum.dim_IntList(self=%x, dim=[0], keepdim=is_even, dtype=None): float32[2]
%scaled = aten::mul.Tensor(self=%sum, other=more): float32[2]
%shifted = aten::add.Tensor(self=%scaled, other=0.5, alpha=1): float32[2]
%known = aten::mul.Tensor(self=%shifted, other=is_even): float32[2]
return (%known, more)
)",
                     [](const std::string&) { return at::ones({8}); })
      .parts();
}

TEST(Verify, ChecksSizesThatFollow) {
  const SizeExpr s = SizeExpr::of_size(0);
  expect_refused(measuring,
                 {
                     {[&](GraphParts& g) {
                        g.sizes[1].rule = rule(SizeRule::Op::kMin, s, SizeExpr::of_size(2));
                      },
                      "size half: it follows from a size that does not come before it"},
                     {[&](GraphParts& g) {
                        g.sizes[1].rule = rule(SizeRule::Op::kMin, SizeExpr::of_size(1), s);
                      },
                      "size half: it follows from a size that does not come before it"},
                     {[&](GraphParts& g) { g.sizes[0].rule = rule(SizeRule::Op::kMin, s, s); },
                      "size S: it follows from a size that does not come before it"},
                     {[&](GraphParts& g) {
                        g.sizes[1].rule = rule(SizeRule::Op::kMin, s, SizeExpr::of_size(40));
                      },
                      "size half: it follows from a size that does not come before it"},
                     {[](GraphParts& g) { g.sizes[1].measured = g.sizes[3].measured; },
                      "size half: it has a rule and is measured"},
                     {[](GraphParts& g) { g.guards[0].holds = SizeExpr::of_size(5); },
                      "a guard has a size that the graph lacks"},
                     {[](GraphParts& g) { g.inputs[0] = SizeExpr::of_size(1); },
                      "an input is neither a tensor, nor a size, nor fixed"},
                     {[](GraphParts& g) { g.inputs[0] = SizeExpr::of_size(3); },
                      "an input is neither a tensor, nor a size, nor fixed"},
                 });
}

TEST(Verify, ChecksWhereSizesAreMeasured) {
  const auto at_input = [](GraphParts& g) { return *g.inputs[0].value(); };
  expect_refused(measuring,
                 {
                     {[&](GraphParts& g) { g.sizes[3].measured->value = at_input(g); },
                      "a size is measured at %x, which no node makes"},
                     {[](GraphParts& g) {
                        g.sizes[3].measured = {g.states[0].value, 0};
                      },
                      "a size is measured at %c, which no node makes"},
                     {[](GraphParts& g) { g.sizes[3].measured->value = ValueId(99); },
                      "size n: it is measured at a value that does not exist"},
                     {[](GraphParts& g) { g.sizes[3].measured->value = ValueId(-1); },
                      "size n: it is measured at a value that does not exist"},
                     {[](GraphParts& g) { g.sizes[3].measured->dim = 2; },
                      "size n: it is measured at a value that does not exist"},
                     {[](GraphParts& g) { g.sizes[3].measured->dim = -2; },
                      "size n: it is measured at a value that does not exist"},
                     // Read before it is measured, alone and in what follows from it.
                     {[](GraphParts& g) {
                        g.sizes[3].measured = {*node(g, "shifted").results[0].value(), 0};
                      },
                      "scaled: the inputs do not determine the size more"},
                     {[](GraphParts& g) {
                        g.sizes[3].measured = {*node(g, "shifted").results[0].value(), 0};
                        node(g, "scaled").arguments[1] = SizeExpr::of_size(3);
                      },
                      "scaled: the inputs do not determine the size n"},
                 });
}

TEST(Verify, TellsTruthsFromNumbers) {
  expect_refused(
      measuring,
      {
          {[](GraphParts& g) { node(g, "sum").arguments[2] = SizeExpr::of_size(1); },
           "sum: aten::sum.dim_IntList takes 'keepdim' as bool, got a different kind"},
          {[](GraphParts& g) {
             node(g, "sum").arguments[2] = SizeExpr::of_terms(std::vector<SizeExpr::Term>{{4, 2}});
           },
           "takes 'keepdim' as bool, got a different kind"},
          {[](GraphParts& g) { node(g, "sum").arguments[2] = Argument::fixed(1); },
           "takes 'keepdim' as bool, got a different kind"},
          {[](GraphParts& g) { node(g, "shifted").arguments[1] = Argument::fixed("0.5"); },
           "takes 'other' as Tensor, got a different kind"},
      });
}

TEST(Verify, TakesSixtyTwoSizes) {
  GraphParts graph = measuring();
  while (graph.sizes.size() < 62) {
    GraphSize size;
    size.name = "s" + std::to_string(graph.sizes.size());
    size.rule = rule(SizeRule::Op::kMax,
                     SizeExpr::of_size(static_cast<int>(graph.sizes.size()) - 1), SizeExpr(7));
    graph.sizes.push_back(size);
  }
  graph.outputs[1] = SizeExpr::of_size(61);
  EXPECT_EQ(verify(graph), std::nullopt);
  graph.sizes.push_back(graph.sizes.back());
  EXPECT_EQ(verify(graph), "expected at most 62 sizes, got 63");
}

/// A cond with two operands and two sizes, one of them fixed.
GraphParts branching() {
  const std::string branch = R"(
  graph exported
  size R = 4, at least 0
  size n = 4, at least 0
  size two = 2, at least 0
  args (%a: float32[R], %b: float32[R], n, two)
  kwargs {}
  %sum = aten::add.Tensor(self=%a, other=%b, alpha=n): float32[R]
  return (%sum, %a))";
  return parse_graph(R"(graph exported
size S = 4, at least 0
args (%p: bool[], %x: float32[S])
kwargs {}
cond: [%y, None] = stagecraft::cond(predicate=%p, operands=[%x, %x], sizes=[S, 2]): [float32[S], None])" +
                         branch + branch + "\nreturn %y\n",
                     [](const std::string&) { return at::Tensor(); })
      .parts();
}

void change_branch(GraphParts& graph, std::size_t which,
                   const std::function<void(GraphParts&)>& change) {
  Graph& branch = graph.nodes[0].branches[which];
  GraphParts parts = branch.parts();
  change(parts);
  branch = Graph(std::move(parts));
}

TEST(Verify, ChecksBranches) {
  expect_refused(
      branching,
      {
          {[](GraphParts& g) { g.nodes[0].branches.pop_back(); },
           "cond: expected 2 branches, got 1"},
          {[](GraphParts& g) { g.nodes[0].branches.clear(); }, "cond: expected 2 branches, got 0"},
          {[](GraphParts& g) { g.nodes[0].branches.push_back(g.nodes[0].branches[0]); },
           "cond: expected 2 branches, got 3"},
          {[](GraphParts& g) {
             g.nodes[0].op = {"aten::t", ""};
             g.nodes[0].arguments = {g.inputs[1]};
             g.nodes[0].results = {(*g.nodes[0].results[0].list())[0]};
           },
           "cond: expected 0 branches, got 2"},
          {[](GraphParts& g) { g.nodes[0].arguments[1] = Argument::List{g.inputs[1]}; },
           "cond: a branch takes 4 operands, got 3"},
          {[](GraphParts& g) { g.nodes[0].arguments[2] = Argument::List{SizeExpr::of_size(0)}; },
           "cond: a branch takes 4 operands, got 3"},
          {[](GraphParts& g) { g.nodes[0].results[0] = Argument::List{}; },
           "cond: a branch returns 2 values, got a different number"},
          {[](GraphParts& g) { g.nodes[0].results[0] = Argument(); },
           "cond: a branch returns 2 values, got a different number"},
          {[](GraphParts& g) {
             change_branch(g, 1, [](GraphParts& b) {
               b.states.push_back(
                   {.value = b.values.push_back({.name = "w", .shape = {SizeExpr(2)}}),
                    .tensor = at::ones({2})});
             });
           },
           "cond: a branch has states or keywords"},
          {[](GraphParts& g) {
             change_branch(g, 0, [](GraphParts& b) {
               b.kwargs = TreeSpec::dict({"n"}, {TreeSpec::leaf()});
               b.inputs.emplace_back(Argument::fixed(1));
             });
           },
           "cond: a branch has states or keywords"},
          {[](GraphParts& g) {
             change_branch(g, 0, [](GraphParts& b) {
               b.output = TreeSpec::tuple({TreeSpec::leaf()});
               b.outputs.pop_back();
             });
           },
           "cond: a branch returns 1 values, got a different number"},
          {[](GraphParts& g) {
             change_branch(g, 0, [](GraphParts& b) {
               b.output = TreeSpec::list({TreeSpec::leaf(), TreeSpec::leaf()});
             });
           },
           "cond: a branch returns 2 values, got a different number"},
      });
}

}  // namespace
}  // namespace stagecraft
