#include "stagecraft/graph/graph_text.h"

#include <map>
#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include "stagecraft/graph/program.h"
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

Graph parse(const std::string& text) {
  return parse_graph(text, read_state);
}

std::string changed(const std::string& from, const std::string& to) {
  std::string text = kLinear;
  const std::size_t place = text.find(from);
  EXPECT_NE(place, std::string::npos) << from;
  return text.replace(place, from.size(), to);
}

TEST(GraphText, ComesBack) {
  EXPECT_EQ(to_text(parse(kLinear)), kLinear);
}

TEST(GraphText, Runs) {
  const GraphProgram program(parse(kLinear));
  const c10::IValue output = program.run({at::ones({6, 16}), 3}, {{"mask", c10::IValue()}});
  const auto& elements = output.toTupleRef().elements();
  EXPECT_EQ(elements[0].toTensor().sizes(), (std::vector<int64_t>{2, 24}));
  EXPECT_FALSE(elements[0].toTensor().requires_grad());
  EXPECT_EQ(elements[0].toTensor()[0][1].item<float>(), 17.0F);
  EXPECT_EQ(elements[1].toGenericDict().at("rows").toInt(), 6);
  EXPECT_EQ(elements[1].toGenericDict().at("rate").toDouble(), 0.5);
}

TEST(GraphText, RefusesArgumentsThatTheGraphWasNotMadeFor) {
  const GraphProgram program(parse(kLinear));
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
  const GraphProgram program(parse(changed("[2, 4*B]):", "[3, 4*B]):")));
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
    EXPECT_ERROR(parse(changed(change.first, change.second)), ParseError, message);
  }
  EXPECT_ERROR(parse("graph\nargs ()\nkwargs {}\n"), ParseError, "expected 'return'");
}

TEST(GraphText, RefusesDeepLists) {
  const std::string head = "graph\nargs ()\nkwargs {}\n";
  EXPECT_ERROR(parse(head + "%a = aten::t(self=" + std::string(1'000'000, '[')), ParseError,
               "nested deeper than 256");
  EXPECT_ERROR(parse(head + std::string(1'000'000, '[')), ParseError, "nested deeper than 256");
}

TEST(GraphText, KeepsOpenDimensionsAndBuffersThatAreNotSaved) {
  const std::string text =
      "graph\nbuffer %mask: float32[2], not saved\nargs (%x: float32[?3, 2],)\nkwargs {}\n"
      "%y = aten::mul.Tensor(self=%x, other=%mask): float32[?3, 2]\nreturn %y\n";
  const Graph graph = parse_graph(text, [](const std::string&) { return at::ones({2}); });
  EXPECT_EQ(to_text(graph), text);
  EXPECT_FALSE(graph.parts().states[0].is_persistent);
  EXPECT_EQ(graph.parts().values[1].open_dims, 1U);
  EXPECT_TRUE(GraphProgram(graph).run({at::ones({7, 2})}, {}).toTensor().equal(at::ones({7, 2})));
}

TEST(GraphText, HoldsTheSmallestNumber) {
  const std::string text =
      "graph\nargs (%x: float32[2],)\nkwargs {}\n%y = aten::clamp_min(self=%x, "
      "min=-9223372036854775808): float32[2]\nreturn %y\n";
  EXPECT_EQ(to_text(parse(text)), text);
}

TEST(GraphText, RefusesGraphsThatCannotRun) {
  EXPECT_ERROR(parse(changed("float32[8, 16]", "float32[8, 17]")), GraphError,
               "%fc.weight: its tensor is Tensor[8, 16] float32");
  EXPECT_ERROR(parse("graph\nsize inf = 4, at least 1\nargs ()\nkwargs {}\nreturn 1\n"), GraphError,
               "'inf' is no name for a size");
  EXPECT_ERROR(parse(changed("beta=1", "beta=\"one\"")), GraphError, "takes 'beta'");
  EXPECT_ERROR(parse(changed("float32[B, 16]", "float32[4, 16]")), GraphError,
               "view: the inputs do not tell the size B");
}

}  // namespace
}  // namespace stagecraft
