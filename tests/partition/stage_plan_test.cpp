#include "stagecraft/partition/stage_plan.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>

#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/partition/pipe_file.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;
using testing::HasSubstr;
using testing::Not;

Graph parse(const std::string& text, const std::map<std::string, Tensor>& states = {}) {
  return parse_graph(text, [&](const std::string& name) { return states.at(name); });
}

/// Cut before the nodes of these names.
Pipe cut_before(const Graph& graph, const std::vector<std::string>& names) {
  SplitPositions cuts;
  for (std::size_t n = 0; n < graph.parts().nodes.size(); ++n) {
    if (std::ranges::count(names, graph.parts().nodes[n].name) > 0) cuts.push_back(n);
  }
  EXPECT_EQ(cuts.size(), names.size());
  return Pipe(graph, {.policy = [cuts](const Graph&) { return cuts; }});
}

std::string stage_text(const Pipe& pipe, int32_t stage) {
  return to_text(pipe.stage_graph(StageId(stage)));
}

/// Every way to cut it in two and in three gives what the uncut graph does.
void expect_same_however_cut(const Graph& graph, const std::vector<Args>& inputs) {
  const GraphProgram whole(graph);
  const SplitCandidates candidates(graph);
  std::size_t tried = 0;
  for (std::size_t a = 1; a < candidates.num_nodes(); ++a) {
    for (std::size_t b = a; b < candidates.num_nodes(); ++b) {
      if (!candidates.is_legal(a) || !candidates.is_legal(b)) continue;
      const SplitPositions cuts = a == b ? SplitPositions{a} : SplitPositions{a, b};
      const Pipe pipe(graph, {.policy = [cuts](const Graph&) { return cuts; }});
      for (const Args& args : inputs) {
        EXPECT_TRUE(tree::equal(pipe.run(args), whole.run(args))) << pipe.call_text();
      }
      ++tried;
    }
  }
  EXPECT_GT(tried, 2U);
}

TEST(StagePlan, EachStageAppliesRulesItself) {
  const Graph graph = parse(R"(graph exported
size S = 8, at least 2
size half = 4, as floor_div(S, 2)
size quarter = 2, as floor_div(half, 2)
args (%x: float32[S, 3],)
kwargs {}
%exp = aten::exp(self=%x): float32[S, 3]
%narrow = aten::narrow(self=%exp, dim=0, start=0, length=half): float32[half, 3] &0
%sin = aten::sin(self=%narrow): float32[half, 3]
%flat = aten::reshape(self=%sin, shape=[-1]): float32[3*half] &1
%cos = aten::cos(self=%flat): float32[3*half]
%few = aten::narrow(self=%cos, dim=0, start=0, length=quarter): float32[quarter] &2
%out = aten::mul.Tensor(self=%few, other=quarter): float32[quarter]
return (%out, half)
)");
  expect_same_however_cut(graph, {{at::rand({8, 3})}, {at::rand({5, 3})}, {at::rand({11, 3})}});
  // What the tensors of a stage tell is not sent.
  EXPECT_EQ(cut_before(graph, {"narrow"}).call_text(),
            "%submod_pp_0.0 = submod_pp_0(args[0])\nreturn submod_pp_1(%submod_pp_0.0)\n");
  // A tensor does not tell the size that a rule made of another: that one comes from the stage
  // before.
  const Pipe pipe = cut_before(graph, {"cos"});
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0, %submod_pp_0.1 = submod_pp_0(args[0])\n"
            "return submod_pp_1(%submod_pp_0.0, %submod_pp_0.1)\n");
  EXPECT_THAT(stage_text(pipe, 1), HasSubstr("args (%flat: float32[3*half], S)"));
}

// The size n is measured in the first stage, and what follows from it in the last.
const char* const kMeasuring = R"(graph exported
size S = 8, at least 1
size n = 3, from %nonzero dimension 0
size k = 2, from %max
size twice = 6, as product(n, k)
parameter %w: float32[1]
args (%x: float32[S],)
kwargs {}
%relu = aten::relu(self=%x): float32[S]
%nonzero = aten::nonzero(self=%relu): int64[n, 1]
%max = aten::max(self=%nonzero): int64[]
%scaled = aten::mul.Tensor(self=%relu, other=%w): float32[S]
%exp = aten::exp(self=%scaled): float32[S]
%out = aten::mul.Tensor(self=%exp, other=twice): float32[S]
return (%out, n)
)";

Tensor mixed(int64_t size) {
  return at::sin(at::arange(size, at::kFloat) * 2 + 1);
}

TEST(StagePlan, SendsMeasuredSizes) {
  const Graph graph = parse(kMeasuring, {{"w", at::full({1}, 0.5)}});
  expect_same_however_cut(graph, {{mixed(8)}, {mixed(3)}, {mixed(13)}});
  const Pipe pipe = cut_before(graph, {"scaled", "exp"});
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0, %submod_pp_0.1, %submod_pp_0.2 = submod_pp_0(args[0])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0)\n"
            "return submod_pp_2(%submod_pp_1.0, %submod_pp_0.1, %submod_pp_0.2)\n");
  EXPECT_THAT(stage_text(pipe, 0), HasSubstr("return (%relu, n, k)"));
  EXPECT_THAT(stage_text(pipe, 2), HasSubstr("args (%scaled: float32[S], n, k)"));
  EXPECT_THAT(stage_text(pipe, 2), HasSubstr("size twice = 6, as product(n, k)"));
  // It is an int for the stage that takes it, and no other size follows from it there.
  const c10::IValue late =
      GraphProgram(pipe.stage_graph(StageId(2))).run({mixed(4), int64_t{3}, int64_t{-2}});
  EXPECT_TRUE(late.toTupleRef().elements()[0].toTensor().equal(mixed(4).exp() * -6));
}

TEST(StagePlan, SendsMeasuredSizesInPipelines) {
  const Graph graph = parse(kMeasuring, {{"w", at::full({1}, 0.5).requires_grad_()}});
  const Pipe pipe = cut_before(graph, {"scaled", "exp"});
  Pipeline run(pipe.build_stages(), {.ports = pipe.ports()});
  const StepResult result =
      run.eval({mixed(9)}, {}, {}, {.microbatches = 3, .outputs = OutputMode::kEach});
  ASSERT_EQ(result.outputs.size(), 3U);
  for (int64_t m = 0; m < 3; ++m) {
    EXPECT_TRUE(tree::equal(tree::map(result.outputs[static_cast<std::size_t>(m)],
                                      [](const c10::IValue& leaf) -> c10::IValue {
                                        return leaf.isTensor() ? leaf.toTensor().detach() : leaf;
                                      }),
                            tree::map(GraphProgram(graph).run({mixed(9).narrow(0, 3 * m, 3)}),
                                      [](const c10::IValue& leaf) -> c10::IValue {
                                        return leaf.isTensor() ? leaf.toTensor().detach() : leaf;
                                      })));
  }
}

TEST(StagePlan, ComesBackFromAFile) {
  const std::string path = testing::TempDir() + "stage_plan_test.pipe";
  const Graph graph = parse(kMeasuring, {{"w", at::full({1}, 0.5)}});
  const Pipe pipe = cut_before(graph, {"scaled", "exp"});
  save_pipe(pipe, path);
  const Pipe loaded = load_pipe(path);
  std::filesystem::remove(path);
  EXPECT_EQ(loaded.call_text(), pipe.call_text());
  for (int32_t i = 0; i < 3; ++i) EXPECT_EQ(stage_text(loaded, i), stage_text(pipe, i));
  EXPECT_TRUE(tree::equal(loaded.run({mixed(7)}), pipe.run({mixed(7)})));
}

TEST(StagePlan, GivesNumbersOfTheCallerToTheStagesThatNeedThem) {
  const Graph graph = parse(R"(graph exported
size S = 4, at least 1
size factor = 3, at least -9223372036854775808
size T = 2, at least 1
args (%x: float32[S], factor, %unread: float32[2*T])
kwargs {}
%exp = aten::exp(self=%x): float32[S]
%sin = aten::sin(self=%exp): float32[S]
%mul = aten::mul.Tensor(self=%sin, other=factor): float32[S]
%add = aten::add.Tensor(self=%mul, other=T, alpha=1): float32[S]
return (%add, factor)
)");
  expect_same_however_cut(graph,
                          {{mixed(4), int64_t{3}, mixed(4)}, {mixed(5), int64_t{-7}, mixed(6)}});
  const Pipe pipe = cut_before(graph, {"sin", "mul", "add"});
  EXPECT_EQ(pipe.call_text(),
            "%submod_pp_0.0 = submod_pp_0(args[0])\n"
            "%submod_pp_1.0 = submod_pp_1(%submod_pp_0.0)\n"
            "%submod_pp_2.0, %submod_pp_2.1 = submod_pp_2(args[1], %submod_pp_1.0)\n"
            "return submod_pp_3(args[2], %submod_pp_2.0, %submod_pp_2.1)\n");
}

TEST(StagePlan, StagesCheckTheGuardsWhoseSizesTheyKnow) {
  const Graph graph = parse(R"--(graph exported
size B = 4, at least 1
size S = 8, at least 1
size rest = 0, as mod(B, 2)
size is_even = 1, as equal(rest, 0)
size fits = 1, as less(B, S)
require is_even: "args[0].size(0) % 2 == 0"
require fits: "args[0].size(0) < args[1].size(0)"
args (%x: float32[B], %y: float32[S])
kwargs {}
%exp = aten::exp(self=%x): float32[B]
%sum = aten::sum(self=%exp, dtype=None): float32[]
%out = aten::mul.Tensor(self=%y, other=%sum): float32[S]
return %out
)--");
  const Pipe pipe = cut_before(graph, {"out"});
  EXPECT_THAT(stage_text(pipe, 0), HasSubstr("require is_even: "));
  EXPECT_THAT(stage_text(pipe, 0), Not(HasSubstr("require fits: ")));
  EXPECT_THAT(stage_text(pipe, 1), Not(HasSubstr("require ")));
  EXPECT_TRUE(pipe.run({at::ones({4}), at::ones({5})}).toTensor().defined());
  EXPECT_ERROR(pipe.run({at::ones({3}), at::ones({5})}), MetadataError,
               "the model was exported for inputs with args[0].size(0) % 2 == 0, got B = 3, S = 5");
  // No stage knows both, but the pipe does.
  EXPECT_ERROR(pipe.run({at::ones({6}), at::ones({5})}), MetadataError,
               "for inputs with args[0].size(0) < args[1].size(0), got B = 6, S = 5");
  EXPECT_ERROR(GraphProgram(pipe.stage_graph(StageId(0))).run({at::ones({3})}), MetadataError,
               "args[0].size(0) % 2 == 0, got B = 3");
  // In a pipeline the stage says so.
  Pipeline run(pipe.build_stages(), {.ports = pipe.ports()});
  EXPECT_ERROR(run.eval({at::ones({6}), at::ones({10})}, {}, {}, {.microbatches = 2}), StageError,
               "args[0].size(0) % 2 == 0, got B = 3");
}

TEST(StagePlan, KeepsBranchesTogether) {
  const Graph graph = parse(R"(graph exported
size S = 4, at least 1
size half = 2, as floor_div(S, 2)
parameter %w: float32[3]
args (%x: float32[S, 3],)
kwargs {}
%sum = aten::sum(self=%x, dtype=None): float32[]
%gt = aten::gt.Scalar(self=%sum, other=0): bool[]
%exp = aten::exp(self=%x): float32[S, 3]
cond: [%y] = stagecraft::cond(predicate=%gt, operands=[%exp, %w], sizes=[half]): [float32[?2, 3]]
  graph exported
  size R = 4, at least 0
  size h = 2, at least 0
  args (%a: float32[R, 3], %b: float32[3], h)
  kwargs {}
  %narrow = aten::narrow(self=%a, dim=0, start=0, length=h): float32[h, 3] &0
  %mul = aten::mul.Tensor(self=%narrow, other=%b): float32[h, 3]
  return (%mul,)
  graph exported
  size R = 4, at least 0
  size h = 2, at least 0
  args (%a: float32[R, 3], %b: float32[3], h)
  kwargs {}
  %sin = aten::sin(self=%a): float32[R, 3]
  return (%sin,)
%cos = aten::cos(self=%y): float32[?2, 3]
return %cos
)",
                            {{"w", at::arange(3, at::kFloat)}});
  expect_same_however_cut(graph, {{at::ones({4, 3})}, {-at::ones({4, 3})}, {at::ones({7, 3})}});
  const Pipe pipe = cut_before(graph, {"cond", "cos"});
  EXPECT_EQ(pipe.stage_graph(StageId(1)).parts().nodes.size(), 1U);
  EXPECT_EQ(pipe.stage_graph(StageId(1)).parts().nodes[0].branches.size(), 2U);
  EXPECT_NE(pipe.stage_graph(StageId(1)).find_state("w"), nullptr);
}

}  // namespace
}  // namespace stagecraft
