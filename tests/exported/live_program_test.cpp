#include "stagecraft/exported/live_program.h"

#include <map>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>

#include "stagecraft/base/error.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/own_operators.h"
#include "stagecraft/graph/run/program.h"
#include "tests/exported/small_archive.h"

namespace stagecraft {
namespace {

using Tensors = std::map<std::string, at::Tensor>;

// The tensors of SmallArchive::linear(), as a model would hold them.
Tensors tensors_of(const Graph& graph) {
  Tensors tensors;
  for (const GraphState& state : graph.parts().states) {
    tensors[graph.value(state.value).name] = state.tensor.clone();
  }
  return tensors;
}

double sum_of(const Graph& graph) {
  return GraphProgram(graph).run({at::ones({3, 4})}).toTensor().sum().item<double>();
}

TEST(LiveProgram, SharesTheTensorsThatAreGiven) {
  const SmallArchive archive = SmallArchive::linear();
  const Tensors tensors = tensors_of(load(archive));
  const LiveProgram program = read_live_program(archive.model.dump(), tensors);
  EXPECT_EQ(to_text(program.graph), to_text(load(archive)));
  EXPECT_EQ(sum_of(program.graph), sum_of(load(archive)));
  for (const auto& [name, tensor] : tensors) {
    ASSERT_NE(program.graph.find_state(name), nullptr);
    EXPECT_TRUE(program.graph.find_state(name)->tensor.is_same(tensor)) << name;
  }
  // A change of the model is a change of the graph.
  for (const auto& [name, tensor] : tensors) tensor.zero_();
  EXPECT_EQ(sum_of(program.graph), 3 * 4);
}

TEST(LiveProgram, NamesATensorThatIsMissing) {
  const SmallArchive archive = SmallArchive::linear();
  Tensors tensors = tensors_of(load(archive));
  const std::string name = tensors.begin()->first;
  tensors.erase(name);
  try {
    (void)read_live_program(archive.model.dump(), tensors);
    FAIL() << "expected a FileError";
  } catch (const FileError& error) {
    EXPECT_THAT(error.what(), testing::HasSubstr(name));
  }
}

TEST(LiveProgram, RunsOnTensorsThatReplaceItsOwn) {
  const Graph graph = load(SmallArchive::linear());
  Tensors others;
  for (const auto& [name, tensor] : tensors_of(graph)) others[name] = at::full_like(tensor, 0);
  const Graph again = with_tensors(graph, others);
  EXPECT_EQ(sum_of(again), 3 * 4);
  EXPECT_NE(sum_of(graph), 3 * 4) << "the graph itself is as before";
  // Names that the graph does not have are left alone, a different shape is refused.
  EXPECT_EQ(sum_of(with_tensors(graph, {{"nobody", at::ones({1})}})), sum_of(graph));
  others.begin()->second = at::ones({1, 1});
  EXPECT_THROW((void)with_tensors(graph, others), GraphError);
}

// Both packages' markers are cuts.
TEST(LiveProgram, ReadsTheSplitMarkerOfTorchPipelining) {
  const SmallArchive plain = SmallArchive::linear();
  for (const char* marker :
       {"torch.ops.pippy._pipe_split.default", "torch.ops.stagecraft.pipe_split.default"}) {
    SmallArchive archive = plain;
    archive.nodes().insert(archive.nodes().begin() + 1, node(marker, {}, {}));
    const Graph graph = read_live_program(archive.model.dump(), tensors_of(load(plain))).graph;
    EXPECT_THAT(to_text(graph), testing::HasSubstr(kSplitOperator)) << marker;
    EXPECT_EQ(sum_of(graph), sum_of(load(plain))) << marker;
  }
}

}  // namespace
}  // namespace stagecraft
