#include "stagecraft/partition/split.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <limits>
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/Functions.h>
#include <ATen/TensorOperators.h>
#include <torch/csrc/autograd/generated/variable_factories.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/capture/scope.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/partition/flops.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/pipe.h"
#include "tests/support/expect_error.h"

namespace stagecraft {
namespace {

using at::Tensor;

constexpr int64_t kSplitWidth = 8;

/// Blocks of x + fc(x).relu(), the last twice as wide inside, with a named region after them.
struct Blocks {
  explicit Blocks(int count) {
    for (int i = 0; i < count; ++i) {
      weights.push_back(torch::full({kSplitWidth, kSplitWidth}, 0.1 * (i + 1)).requires_grad_());
    }
  }
  StageBody model(bool has_markers = false) const {
    StageBody result;
    for (std::size_t i = 0; i < weights.size(); ++i) {
      result.parameters.emplace_back("blocks." + std::to_string(i) + ".fc.weight", weights[i]);
    }
    result.forward = [weights = weights, has_markers](const Args& args,
                                                      const Kwargs&) -> c10::IValue {
      Tensor x = args[0].toTensor();
      for (const Tensor& w : weights) {
        if (has_markers && !w.is_same(weights.front())) pipe_split();
        x = x + x.mm(w.t()).relu();
      }
      const auto region = scope("softmax");
      return x.softmax(-1);
    };
    return result;
  }
  std::vector<Tensor> weights;
};

Graph graph_of(int blocks, bool has_markers = false) {
  return capture(Blocks(blocks).model(has_markers), {{torch::ones({4, kSplitWidth})}, {}});
}

std::vector<std::string> first_nodes(const Graph& graph, const SplitPositions& cuts) {
  std::vector<std::string> names;
  for (const std::size_t cut : cuts) names.push_back(graph.parts().nodes[cut].name);
  return names;
}

TEST(Split, CutsAtMarkers) {
  const Graph graph = graph_of(3, true);
  const SplitPositions cuts = find_split_positions(graph, {});
  EXPECT_EQ(first_nodes(graph, cuts), (std::vector<std::string>{"pipe_split", "pipe_split_1"}));
  const Pipe pipe(graph);
  ASSERT_EQ(pipe.num_stages(), 3);
  for (int32_t i = 0; i < 3; ++i) {
    for (const GraphNode& node : pipe.stage_graph(StageId(i)).parts().nodes) {
      EXPECT_NE(node.op.name, kSplitOperator);
    }
  }
  EXPECT_TRUE(find_split_positions(graph_of(2), {}).empty());
}

Graph marked(const std::function<Tensor(Tensor)>& fn) {
  return capture(
      {[fn](const Args& args, const Kwargs&) -> c10::IValue { return fn(args[0].toTensor()); }},
      {{torch::ones({4, kSplitWidth})}, {}});
}

TEST(Split, TakesMarkersInARowForOne) {
  const Graph graph = marked([](Tensor x) {
    x = x + 1;
    pipe_split();
    pipe_split();
    return x * 2;
  });
  EXPECT_EQ(Pipe(graph).num_stages(), 2);
}

TEST(Split, RefusesEmptyStages) {
  EXPECT_ERROR(Pipe(marked([](Tensor x) {
                 pipe_split();
                 return x * 2;
               })),
               ArgumentError, "pipe_split number 1: the stage before it would be empty");
  EXPECT_ERROR(Pipe(marked([](Tensor x) {
                 x = x * 2;
                 pipe_split();
                 return x;
               })),
               ArgumentError, "pipe_split number 1: the stage after it would be empty");
}

TEST(Split, MovesMarkersAwayFromChangesInPlace) {
  const Graph graph = marked([](Tensor x) {
    Tensor y = x + 1;
    const Tensor left = y.narrow(1, 0, 2);
    pipe_split();
    left.mul_(2);
    return y.exp();
  });
  const Pipe pipe(graph);
  const Tensor x = torch::ones({3, kSplitWidth});
  EXPECT_EQ(pipe.num_stages(), 2);
  EXPECT_EQ(pipe.stage_graph(StageId(0)).parts().nodes.back().name, "add");
  Tensor expected = (x + 1);
  expected.narrow(1, 0, 2).mul_(2);
  EXPECT_TRUE(pipe.run({x}).toTensor().equal(expected.exp()));
}

TEST(Split, CutsAtModulesWhereTheFewestBytesAre) {
  const Graph graph = graph_of(3);
  // Behind the sum of block 0, not between its relu and the sum, where two tensors would go.
  EXPECT_EQ(first_nodes(graph, find_split_positions(
                                   graph, {.points = {{"blocks.1", SplitPoint::kBeginning}}})),
            std::vector<std::string>{"t_1"});
  EXPECT_EQ(first_nodes(graph, find_split_positions(
                                   graph, {.points = {{"blocks.1.fc", SplitPoint::kEnd}}})),
            std::vector<std::string>{"t_2"});
  EXPECT_EQ(first_nodes(graph, find_split_positions(
                                   graph, {.points = {{"softmax", SplitPoint::kBeginning},
                                                      {"blocks.2", SplitPoint::kBeginning}}})),
            (std::vector<std::string>{"t_2", "softmax"}));
}

TEST(Split, ChecksNames) {
  const Graph graph = graph_of(3);
  auto at = [&](const std::string& name, SplitPoint point) {
    return find_split_positions(graph, {.points = {{name, point}}});
  };
  EXPECT_ERROR(
      at("block.1", SplitPoint::kBeginning), ArgumentError,
      "there is no module 'block.1' that reads a parameter or buffer, and no scope of that name; "
      "the nearest is blocks.1");
  EXPECT_ERROR(at("blocks.0", SplitPoint::kBeginning), ArgumentError,
               "split at the beginning of blocks.0: the stage before it would be empty");
  EXPECT_ERROR(at("softmax", SplitPoint::kEnd), ArgumentError,
               "split at the end of softmax: the stage after it would be empty");
  EXPECT_ERROR(find_split_positions(graph, {.points = {{"blocks.1", SplitPoint::kBeginning},
                                                       {"blocks.1.fc", SplitPoint::kBeginning}}}),
               ArgumentError, "the stage before it would be empty");
  EXPECT_ERROR(find_split_positions(
                   graph, {.points = {{"blocks.1", SplitPoint::kEnd}}, .policy = equal_cost(2)}),
               ArgumentError, "expected split points or a policy, got both");
}

TEST(Split, PoliciesBalance) {
  const Graph graph = graph_of(8);
  for (const auto& policy : {equal_parameters(4), equal_cost(4), equal_operators(4)}) {
    const Pipe pipe(graph, {.policy = policy});
    ASSERT_EQ(pipe.num_stages(), 4);
    for (const StageSummary& stage : pipe.summary()) {
      EXPECT_EQ(stage.parameters, 2 * kSplitWidth * kSplitWidth) << pipe.table();
      EXPECT_EQ(stage.bytes_sent, stage.name == "submod_pp_3" ? 0 : 4 * 4 * kSplitWidth)
          << pipe.table();
    }
  }
  EXPECT_ERROR(equal_cost(0), ArgumentError, "expected at least 1 stage, got 0");
  EXPECT_ERROR(find_split_positions(graph_of(1), {.policy = equal_operators(40)}), ArgumentError,
               "the model cannot be split into 40 stages: it can have");
}

TEST(Split, SaysWhenNothingCanBeCut) {
  const Tensor w = torch::ones({kSplitWidth, kSplitWidth});
  const Graph one = capture(
      {[w](const Args& args, const Kwargs&) -> c10::IValue { return args[0].toTensor().mm(w); },
       {{"only.weight", w}}},
      {{torch::ones({4, kSplitWidth})}, {}});
  for (const SplitPoint point : {SplitPoint::kBeginning, SplitPoint::kEnd}) {
    EXPECT_ERROR(find_split_positions(one, {.points = {{"only", point}}}), ArgumentError,
                 "would be empty");
  }
  EXPECT_ERROR(find_split_positions(marked([](Tensor x) { return x + 1; }),
                                    {.points = {{"block", SplitPoint::kBeginning}}}),
               ArgumentError,
               "there is no module 'block' that reads a parameter or buffer, and no scope of that "
               "name; the model has neither");
}

TEST(Split, RefusesToPartAChangeFromWhatItChanges) {
  const Tensor count = torch::zeros({kSplitWidth});
  const Graph graph = capture({[count](const Args& args, const Kwargs&) -> c10::IValue {
                                 const Tensor x = args[0].toTensor() + count;
                                 {
                                   const auto region = scope("middle");
                                   pipe_split();
                                 }
                                 count.add_(1);
                                 return x * 2 + count;
                               },
                               {},
                               {{"count", count}}},
                              {{torch::ones({4, kSplitWidth})}, {}});
  EXPECT_ERROR(Pipe(graph), ArgumentError,
               "pipe_split number 1: the graph cannot be split there: add_ changes %count in "
               "place, which is used on both sides");
}

TEST(Split, TakesTheFewestBytesOfPlacesThatBalanceAlike) {
  const Tensor wide = torch::ones({kSplitWidth, 64});
  const Tensor narrow = torch::ones({1, 1});
  const Graph graph = capture({[&](const Args& args, const Kwargs&) -> c10::IValue {
                                return args[0].toTensor().mm(wide).narrow(1, 0, 1).mm(narrow);
                              }},
                              {{torch::ones({4, kSplitWidth})}, {}});
  EXPECT_EQ(first_nodes(graph, find_split_positions(graph, {.policy = equal_cost(2)})),
            std::vector<std::string>{"mm_1"});
}

TEST(Split, TakesPoliciesOfOnesOwn) {
  const Graph graph = graph_of(2);
  EXPECT_EQ(find_split_positions(graph, {.policy = [](const Graph&) { return SplitPositions{3}; }}),
            SplitPositions{3});
  EXPECT_ERROR(
      find_split_positions(graph, {.policy = [](const Graph&) { return SplitPositions{300}; }}),
      ArgumentError, "the policy's split point before node 300");
}

/// Blocks of x + up(x) down, each with its own inner width.
Graph uneven_blocks(const std::vector<int64_t>& widths) {
  StageBody model;
  std::vector<std::pair<Tensor, Tensor>> weights;
  for (std::size_t i = 0; i < widths.size(); ++i) {
    const auto& [up, down] = weights.emplace_back(torch::ones({kSplitWidth, widths[i]}),
                                                  torch::ones({widths[i], kSplitWidth}));
    model.parameters.emplace_back("blocks." + std::to_string(i) + ".up.weight", up);
    model.parameters.emplace_back("blocks." + std::to_string(i) + ".down.weight", down);
  }
  model.forward = [weights](const Args& args, const Kwargs&) -> c10::IValue {
    Tensor x = args[0].toTensor();
    for (const auto& [up, down] : weights) x = x + x.mm(up).mm(down);
    return x;
  };
  return capture(model, {{torch::ones({4, kSplitWidth})}, {}});
}

int64_t largest_stage(const Graph& graph, const Split& split) {
  int64_t most = 0;
  for (const StageSummary& stage : Pipe(graph, split).summary()) {
    most = std::max(most, stage.flops);
  }
  return most;
}

TEST(Split, BestAtModulesIsTheBestOfAll) {
  const std::vector<int64_t> widths = {1, 16, 2, 32, 4, 4};
  const Graph graph = uneven_blocks(widths);
  for (int32_t stages = 2; stages <= 6; ++stages) {
    // Every choice of blocks, as bits, that gives this number of stages.
    int64_t best = std::numeric_limits<int64_t>::max();
    for (unsigned chosen = 0; chosen < 1U << (widths.size() - 1); ++chosen) {
      if (std::popcount(chosen) != stages - 1) continue;
      Split split;
      for (std::size_t i = 1; i < widths.size(); ++i) {
        if ((chosen >> (i - 1) & 1U) != 0) {
          split.points.emplace_back("blocks." + std::to_string(i), SplitPoint::kBeginning);
        }
      }
      best = std::min(best, largest_stage(graph, split));
    }
    EXPECT_EQ(largest_stage(graph, {.policy = best_at_modules(stages)}), best) << stages;
  }
  EXPECT_TRUE(find_split_positions(graph, {.policy = best_at_modules(1)}).empty());
  // Inner modules allow a better split.
  EXPECT_LT(largest_stage(graph, {.policy = best_at_modules(6, 3)}),
            largest_stage(graph, {.policy = best_at_modules(6)}));
}

TEST(Split, BestAtModulesNeedsModules) {
  const Graph graph = uneven_blocks({1, 2, 3});
  EXPECT_ERROR(best_at_modules(0), ArgumentError, "expected at least 1 stage, got 0");
  EXPECT_ERROR(find_split_positions(graph, {.policy = best_at_modules(4)}), ArgumentError,
               "the model cannot be split into 4 stages at modules of depth 2 or less: 2 of them "
               "begin where it can be split");
}

TEST(Flops, CountProducts) {
  const Graph graph = graph_of(1);
  for (const GraphNode& node : graph.parts().nodes) {
    const int64_t expected = node.name == "t"    ? 0
                             : node.name == "mm" ? 2 * 4 * kSplitWidth * kSplitWidth
                                                 : 4 * kSplitWidth;
    EXPECT_EQ(example_flops(graph, node), expected) << node.name;
  }
}

TEST(Flops, CountGroupedProductsByTheirRows) {
  auto flops_of = [](const std::string& left, const std::string& right, const std::string& result) {
    const Graph graph = parse_graph(
        "graph exported\nsize S = 6, at least 0\nargs (%a: float32[" + left + "], %b: float32[" +
            right + "], %offs: int32[3])\nkwargs {}\n" +
            "%y = aten::_grouped_mm(self=%a, mat2=%b, offs=%offs, bias=None, out_dtype=None): "
            "float32[" +
            result + "]\nreturn %y\n",
        [](const std::string&) { return Tensor(); });
    return example_flops(graph, graph.parts().nodes[0]);
  };
  EXPECT_EQ(flops_of("S, 4", "3, 4, 5", "S, 5"), 2 * 6 * 4 * 5);
  // Groups of columns: the gradient of the weights.
  EXPECT_EQ(flops_of("4, S", "S, 5", "3, 4, 5"), 2 * 6 * 4 * 5);
}

TEST(Flops, OfTwoBranchesTheDearerCounts) {
  auto graph_with = [](const std::string& first, const std::string& second) {
    auto branch = [](const std::string& nodes) {
      return "graph exported\nsize R = 4, at least 0\nargs (%a: float32[R, 3],)\nkwargs {}\n" +
             nodes + "return (%y,)\n";
    };
    return parse_graph(
        "graph exported\nsize S = 4, at least 0\nargs (%p: bool[], %x: float32[S, 3])\nkwargs {}\n"
        "cond: [%y] = stagecraft::cond(predicate=%p, operands=[%x], sizes=[]): [float32[S, 3]]\n" +
            branch(first) + branch(second) + "return %y\n",
        [](const std::string&) { return Tensor(); });
  };
  const std::string cheap = "%y = aten::exp(self=%a): float32[R, 3]\n";
  const std::string dear =
      "%t = aten::t(self=%a): float32[3, R] &0\n%mm = aten::mm(self=%t, mat2=%a): float32[3, 3]\n"
      "%y = aten::mm(self=%a, mat2=%mm): float32[R, 3]\n";
  for (const auto& [first, second] :
       std::vector<std::pair<std::string, std::string>>{{cheap, dear}, {dear, cheap}}) {
    const Graph graph = graph_with(first, second);
    EXPECT_GE(example_flops(graph, graph.parts().nodes[0]), 2 * 3 * 3 * 4 + 2 * 4 * 3 * 3);
    EXPECT_LT(example_flops(graph, graph.parts().nodes[0]), 2 * 3 * 3 * 4 + 2 * 4 * 3 * 3 + 13);
  }
  EXPECT_EQ(example_flops(graph_with(cheap, cheap), graph_with(cheap, cheap).parts().nodes[0]), 12);
}

TEST(Modules, LayersAreTheOutermostNumberedModules) {
  EXPECT_EQ(ModuleExtents(graph_of(2)).layer_depth(), 2U);
  const Tensor w = torch::ones({kSplitWidth, kSplitWidth});
  const Tensor v = torch::ones({kSplitWidth, kSplitWidth});
  const Graph nested = capture({[w, v](const Args& args, const Kwargs&) -> c10::IValue {
                                  return args[0].toTensor().mm(w).mm(v);
                                },
                                {{"a.b.0.fc.weight", w}, {"a.b.1.fc.weight", v}}},
                               {{torch::ones({4, kSplitWidth})}, {}});
  EXPECT_EQ(ModuleExtents(nested).layer_depth(), 3U);
}

TEST(Modules, StandWhereTheirParametersAreRead) {
  const ModuleExtents modules(graph_of(2));
  EXPECT_EQ(modules.names(), (std::vector<std::string>{"blocks", "blocks.0", "blocks.0.fc",
                                                       "blocks.1", "blocks.1.fc", "softmax"}));
  EXPECT_FALSE(modules.get("blocks.1").is_exact);
  EXPECT_TRUE(modules.get("softmax").is_exact);
}

}  // namespace
}  // namespace stagecraft
