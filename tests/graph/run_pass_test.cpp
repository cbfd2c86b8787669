#include "stagecraft/graph/passes/run_pass.h"

#include <string>

#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/passes/dead_code.h"
#include "stagecraft/graph/passes/whole_slices.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

std::string text_after(const std::string& text, const GraphPass& pass) {
  const Graph graph = parse_graph(text, [](const std::string&) { return at::ones({2}); });
  return to_text(run_pass(graph.parts(), pass));
}

constexpr const char* kDeadCode = R"(graph
constant %c: float32[2]
args (%x: float32[2],)
kwargs {}
%mul = aten::mul.Tensor(self=%x, other=%c): float32[2]
%exp = aten::exp(self=%x): float32[2]
return %exp
)";

TEST(RunPass, CompactsWhatThePassLeaves) {
  EXPECT_EQ(text_after(kDeadCode, without_dead_code),
            "graph\nargs (%x: float32[2],)\nkwargs {}\n%exp = aten::exp(self=%x): float32[2]\n"
            "return %exp\n");
}

TEST(RunPass, KeepsWhatIsRead) {
  EXPECT_EQ(text_after(kDeadCode, [](GraphParts parts) { return parts; }), kDeadCode);
}

TEST(RunPass, VerifiesTheResult) {
  EXPECT_ERROR(text_after(kDeadCode,
                          [](GraphParts parts) {
                            parts.nodes.pop_back();
                            return parts;
                          }),
               GraphError, "%exp is read before it is made");
}

TEST(WithoutWholeSlices, ReadersReadTheViewedValue) {
  EXPECT_EQ(text_after(R"(graph
args (%x: float32[2] &0,)
kwargs {}
%slice = aten::slice.Tensor(self=%x, dim=0, start=0, end=9223372036854775807, step=1): float32[2] &0
%exp = aten::exp(self=%slice): float32[2]
return %exp
)",
                       without_whole_slices),
            "graph\nargs (%x: float32[2],)\nkwargs {}\n%exp = aten::exp(self=%x): float32[2]\n"
            "return %exp\n");
}

}  // namespace
}  // namespace stagecraft
