#include "stagecraft/graph/graph_text.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/graph/run/program.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

constexpr const char* kLinear = R"(graph
size B = 4, at least 1
parameter %fc.weight: float32[8, 16] &0
parameter %fc.bias: float32[8]
buffer %steps: int64[], not saved
args (%arg0: float32[B, 16], 3)
kwargs {"mask": None}
%t = aten::t(self=%fc.weight): float32[16, 8] &0
%addmm = aten::addmm(self=%fc.bias, mat1=%arg0, mat2=%t, beta=1, alpha=1): float32[B, 8] in head
%view = aten::view(self=%addmm, size=[2, 4*B]): float32[2, 4*B] no_grad
return (%view, {"rows": B, "rate": 0.5})
)";

at::Tensor read_state(const std::string& name) {
  if (name == "fc.weight") return at::ones({8, 16});
  if (name == "fc.bias") return at::arange(8, at::kFloat);
  return at::full({}, 7, at::kLong);
}

Graph parse_text(const std::string& text) {
  return parse_graph(text, read_state);
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kLinear;
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(GraphText, ComesBack) {
  EXPECT_EQ(to_text(parse_text(kLinear)), kLinear);
}

TEST(GraphText, Runs) {
  const GraphProgram program(parse_text(kLinear));
  const c10::IValue output = program.run({at::ones({6, 16}), 3}, {{"mask", c10::IValue()}});
  const auto& elements = output.toTupleRef().elements();
  EXPECT_EQ(elements[0].toTensor().sizes(), (std::vector<int64_t>{2, 24}));
  EXPECT_FALSE(elements[0].toTensor().requires_grad());
  EXPECT_EQ(elements[0].toTensor()[0][1].item<float>(), 17.0F);
  EXPECT_EQ(elements[1].toGenericDict().at("rows").toInt(), 6);
  EXPECT_EQ(elements[1].toGenericDict().at("rate").toDouble(), 0.5);
}

TEST(GraphText, RefusesArgumentsThatTheGraphWasNotMadeFor) {
  const GraphProgram program(parse_text(kLinear));
  const Kwargs mask = {{"mask", c10::IValue()}};
  EXPECT_ERROR(program.run({at::ones({6, 15}), 3}, mask), MetadataError,
               "args[0]: expected Tensor[B, 16] float32, got Tensor[6, 15] float32");
  EXPECT_ERROR(program.run({at::ones({6}), 3}, mask), MetadataError,
               "args[0]: expected Tensor[B, 16]");
  EXPECT_ERROR(program.run({at::ones({6, 16}, at::kDouble), 3}, mask), MetadataError, "float64");
  EXPECT_ERROR(program.run({at::ones({0, 16}), 3}, mask), MetadataError,
               "B is 0, expected at least 1");
  EXPECT_ERROR(program.run({at::ones({6, 16}), 4}, mask), MetadataError,
               "args[1]: expected 3, which the graph was captured with, got 4");
  EXPECT_ERROR(program.run({at::ones({6, 16})}, mask), MetadataError,
               "expected 2 positional arguments, got 1");
  EXPECT_ERROR(program.run({at::ones({6, 16}), 3}, {}), MetadataError,
               "an argument by name 'mask'");
  EXPECT_ERROR(program.run({at::ones({6, 16}), 3}, {{"mask", c10::IValue()}, {"x", 1}}),
               MetadataError, "got an argument by name 'x'");
}

TEST(GraphText, NamesTheOperatorThatFails) {
  const GraphProgram program(parse_text(changed("[2, 4*B]):", "[3, 4*B]):")));
  EXPECT_ERROR(program.run({at::ones({6, 16}), 3}, {{"mask", c10::IValue()}}), GraphError,
               "view (aten::view): ");
}

TEST(GraphText, SaysWhatIsWrongAndWhere) {
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"graph\n", "grph\n"}, "line 1, column 1: expected 'graph'"},
      {{"float32[8, 16]", "float23[8, 16]"}, "line 3, column 23: expected a dtype, got 'float23'"},
      {{"%t = aten::t", "%t = aten::tt"}, "there is no operator aten::tt"},
      {{"mat2=%t,", "mat2=%u,"}, "%u is read before it is made"},
      {{"%addmm = ", "%t = "}, "%t is made twice"},
      {{"mat1=", "mat3="}, "expected 'mat1='"},
      {{"4*B]): float32", "4*C]): float32"}, "expected a number or a size, got 'C'"},
      {{"return (", "(("}, "line 11"},
      {{"at least 1", "at least x"}, "line 2"},
  };
  for (const auto& [change, message] : cases) {
    const std::string text = changed(change.first, change.second);
    EXPECT_ERROR(parse_text(text), ParseError, message);
  }
  EXPECT_ERROR(parse_text("graph\nargs ()\nkwargs {}\n"), ParseError, "expected 'return'");
}

TEST(GraphText, RefusesDeepLists) {
  const std::string head = "graph\nargs ()\nkwargs {}\n";
  EXPECT_ERROR(parse_text(head + "%a = aten::t(self=" + std::string(1'000'000, '[')), ParseError,
               "nested deeper than 256");
  EXPECT_ERROR(parse_text(head + std::string(1'000'000, '[')), ParseError,
               "nested deeper than 256");
}

TEST(GraphText, KeepsOpenDimensionsAndBuffersThatAreNotSaved) {
  const std::string text =
      "graph\nbuffer %mask: float32[2], not saved\nargs (%x: float32[?3, 2],)\nkwargs {}\n"
      "%y = aten::mul.Tensor(self=%x, other=%mask): float32[?3, 2]\nreturn %y\n";
  const Graph graph = parse_graph(text, [](const std::string&) { return at::ones({2}); });
  EXPECT_EQ(to_text(graph), text);
  EXPECT_FALSE(graph.parts().states[0].is_persistent);
  EXPECT_EQ(graph.parts().values[ValueId(1)].open_dims, 1U);
  EXPECT_TRUE(GraphProgram(graph).run({at::ones({7, 2})}, {}).toTensor().equal(at::ones({7, 2})));
}

TEST(GraphText, HoldsTheSmallestNumber) {
  const std::string text =
      "graph\nargs (%x: float32[2],)\nkwargs {}\n%y = aten::clamp_min(self=%x, "
      "min=-9223372036854775808): float32[2]\nreturn %y\n";
  EXPECT_EQ(to_text(parse_text(text)), text);
}

TEST(GraphText, ReadsDevicesOfValues) {
  const std::string text = R"(graph
args (%x: float32[2]@cuda:0, %y: float32[2]@meta &0)
kwargs {}
%z = aten::add.Tensor(self=%x, other=%x, alpha=1): float32[2]@cuda:1 &1
return %z
)";
  EXPECT_EQ(to_text(parse_text(text)), text);
}

constexpr const char* kExported = R"(graph exported
size S = 8, at least -1, at most 64
size half = 4, as floor_div(S, 2)
size rest = 0, as mod(S, 2)
size even = 1, as equal(rest, 0)
size n = 3, from %nonzero dimension 0
size k = 2, from %max
require even: "args[0].size(0) % 2 == 0, \"quoted\""
require S - 1: "args[0].size(0) != 1"
buffer %steps: int64[]
args (%x: float32[S],)
kwargs {}
%nonzero = aten::nonzero(self=%x): int64[n, 1]
%max = aten::max(self=%nonzero): int64[]
%narrow = aten::narrow(self=%x, dim=0, start=0, length=half): float32[half] &0
%a = aten::mul.Tensor(self=%narrow, other=n): float32[half] autocast(cpu, bfloat16, off, uncached, region 2)
%b = aten::mul.Tensor(self=%a, other=2.5): float32[half] no_grad autocast(cpu, float16, region 3) in head.softmax
%c = aten::add.Tensor(self=%b, other=k, alpha=2): float32[half] autocast(cuda, bfloat16, uncached)
outer: [%y, None] = stagecraft::cond(predicate=even, operands=[%c], sizes=[half]): [float32[half], None]
  graph exported
  size R = 4, at least 0
  size h = 4, at least 0
  args (%a: float32[R], h)
  kwargs {}
  %less = aten::lt.Scalar(self=%a, other=h): bool[R]
  %any = aten::any(self=%less): bool[]
  inner: [%y] = stagecraft::cond(predicate=%any, operands=[%a], sizes=[]): [float32[R]] in deep
    graph exported
    size Q = 4, at least 0
    args (%a: float32[Q],)
    kwargs {}
    %sin = aten::sin(self=%a): float32[Q]
    return (%sin,)
    graph exported
    size Q = 4, at least 0
    args (%a: float32[Q],)
    kwargs {}
    return (%a,)
  return (%y, %a)
  graph exported
  size R = 4, at least 0
  size h = 4, at least 0
  size twice = 8, as product(h, 2)
  args (%a: float32[R], h)
  kwargs {}
  %mul = aten::mul.Tensor(self=%a, other=twice): float32[R]
  return (%mul, %a)
return (%y, {"n": n, "even": even})
)";

std::string exported_with(const std::string& from, const std::string& to) {
  std::string text = kExported;
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(GraphText, HoldsWhatExportedGraphsHave) {
  const Graph graph = parse_text(kExported);
  EXPECT_EQ(to_text(graph), kExported);
  const GraphParts& parts = graph.parts();
  EXPECT_TRUE(parts.is_exported);
  ASSERT_EQ(parts.sizes.size(), 6U);
  EXPECT_EQ(parts.sizes[0].least, -1);
  EXPECT_EQ(parts.sizes[0].greatest, 64);
  EXPECT_EQ(parts.sizes[1].rule->op, SizeRule::Op::kFloorDiv);
  EXPECT_EQ(parts.sizes[4].measured->dim, 0);
  EXPECT_EQ(graph.value(parts.sizes[4].measured->value).name, "nonzero");
  EXPECT_EQ(parts.sizes[5].measured->dim, -1);
  ASSERT_EQ(parts.guards.size(), 2U);
  EXPECT_EQ(parts.guards[0].text, "args[0].size(0) % 2 == 0, \"quoted\"");
  EXPECT_EQ(parts.guards[0].holds, SizeExpr::of_size(3));
  EXPECT_EQ(parts.nodes[3].autocast, (AutocastState{c10::kCPU, at::kBFloat16, false, false, 2}));
  EXPECT_EQ(parts.nodes[4].autocast, (AutocastState{c10::kCPU, at::kHalf, true, true, 3}));
  EXPECT_TRUE(parts.nodes[4].is_no_grad);
  EXPECT_EQ(parts.nodes[4].scope, "head.softmax");
  EXPECT_EQ(parts.nodes[5].autocast, (AutocastState{c10::kCUDA, at::kBFloat16, true, false, 0}));
  ASSERT_EQ(parts.nodes[6].branches.size(), 2U);
  const GraphNode& inner = parts.nodes[6].branches[0].parts().nodes.back();
  EXPECT_EQ(inner.name, "inner");
  EXPECT_EQ(inner.scope, "deep");
  ASSERT_EQ(inner.branches.size(), 2U);
  EXPECT_EQ(inner.branches[0].parts().nodes[0].name, "sin");
}

TEST(GraphText, SaysWhatIsWrongInExportedGraphs) {
  const std::map<std::pair<std::string, std::string>, std::string> cases = {
      {{"graph exported\n", "graph export\n"}, "line 1, column 7: expected"},
      {{"as floor_div(", "as halve("},
       "line 3, column 19: expected a rule for a size, got 'halve'"},
      {{"floor_div(S, 2)", "floor_div(S 2)"}, "line 3, column 31: expected ','"},
      {{"floor_div(S, 2)", "floor_div(n, 2)"},
       "line 3, column 30: expected a number or a size, got 'n'"},
      {{"floor_div(S, 2)\n", "floor_div(S, 2), at least 1\n"}, "line 3, column 34: expected"},
      {{"= 4, as", "= 4, is"}, "line 3, column 14: expected ', at least '"},
      {{"from %nonzero", "from %zero"}, "size n is measured at %zero, which does not exist"},
      {{"from %nonzero", "from nonzero"}, "line 6, column 11: expected ', at least '"},
      {{"from %nonzero", "from %"}, "line 6, column 19: expected the name of a value"},
      {{"dimension 0", "dimension x"}, "line 6, column 37: expected an integer"},
      {{"dimension 0", "dim 0"}, "line 6, column 27: expected"},
      {{"require even:", "require odd:"},
       "line 8, column 12: expected a number or a size, got 'odd'"},
      {{"require even: \"", "require even \""}, "line 8, column 14: expected ': '"},
      {{"require S - 1: \"", "require S - 1: "}, "line 9, column 16: expected '\"'"},
      {{"autocast(cpu, bfloat16, off", "autocast(toaster, bfloat16, off"},
       "line 16, column 70: expected a device, got 'toaster'"},
      {{"autocast(cpu, bfloat16, off", "autocast(cpu, float15, off"},
       "line 16, column 75: expected a dtype, got 'float15'"},
      {{"off, uncached", "uncached, off"}, "line 16, column 93: expected ')'"},
      {{"region 2)", "region two)"}, "line 16, column 107: expected an integer"},
      {{"return (%sin,)\n", "(%sin,)\n"}, "line 33, column 5: expected a node, got '('"},
      {{"    %sin = aten::sin(self=%a)", "    %sin = aten::sin(self=%c)"},
       "line 32, column 28: %c is read before it is made"},
      {{"other=twice", "other=half"}, "expected a number or a size, got 'half'"},
  };
  for (const auto& [change, message] : cases) {
    const std::string text = exported_with(change.first, change.second);
    EXPECT_ERROR(parse_text(text), ParseError, message);
  }
  // One branch alone, and three.
  const std::string text = kExported;
  const std::size_t second = text.rfind("  graph exported\n  size R");
  const std::size_t end = text.rfind("return (%y, {");
  EXPECT_ERROR(parse_text(text.substr(0, second) + text.substr(end)), ParseError,
               "line 40, column 1: expected 'graph'");
  EXPECT_ERROR(parse_text(text.substr(0, end) + text.substr(second)), ParseError,
               "line 48, column 8: expected ':'");
}

TEST(GraphText, RefusesTooManySizes) {
  std::string text = "graph exported\n";
  for (int i = 0; i < 63; ++i) text += "size s" + std::to_string(i) + " = 4, as max(1, 2)\n";
  EXPECT_ERROR(parse_text(text + "args ()\nkwargs {}\nreturn 1\n"), ParseError,
               "line 64, column 6: expected at most 62 sizes");
}

TEST(GraphText, RefusesDeepBranches) {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text +=
        "graph exported\nargs (%p: bool[],)\nkwargs {}\ncond: [%y] = "
        "stagecraft::cond(predicate=%p, operands=[%p], sizes=[]): [bool[]]\n";
  }
  EXPECT_ERROR(parse_text(text), ParseError, "nested deeper than 256");
}

TEST(GraphText, RefusesExportedGraphsThatCannotRun) {
  EXPECT_ERROR(parse_text(exported_with("from %nonzero dimension 0", "from %nonzero dimension 2")),
               GraphError, "size n: it is measured at a value that does not exist");
  EXPECT_ERROR(parse_text(exported_with("from %nonzero dimension 0", "from %steps")), GraphError,
               "a size is measured at %steps, which no node makes");
  EXPECT_ERROR(parse_text(exported_with("return (%mul, %a)", "return (%mul,)")), GraphError,
               "outer: a branch returns 1 values");
  EXPECT_ERROR(parse_text(exported_with("sizes=[half]", "sizes=[half, 3]")), GraphError,
               "outer: a branch takes 2 operands, got 3");
  // A captured graph has no sizes below 0.
  EXPECT_ERROR(parse_text(exported_with("graph exported", "graph")), GraphError,
               "size S: the example is 8, expected at least -1");
}

TEST(GraphText, RefusesGraphsThatCannotRun) {
  EXPECT_ERROR(parse_text(changed("float32[8, 16]", "float32[8, 17]")), GraphError,
               "%fc.weight: its tensor is Tensor[8, 16] float32");
  EXPECT_ERROR(parse_text("graph\nsize inf = 4, at least 1\nargs ()\nkwargs {}\nreturn 1\n"),
               GraphError, "'inf' is not a valid name for a size");
  EXPECT_ERROR(parse_text(changed("beta=1", "beta=\"one\"")), GraphError, "takes 'beta'");
  EXPECT_ERROR(parse_text(changed("float32[B, 16]", "float32[4, 16]")), GraphError,
               "view: the inputs do not determine the size B");
}

}  // namespace
}  // namespace stagecraft
