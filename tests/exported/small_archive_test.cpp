#include "tests/exported/small_archive.h"

#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <ATen/ops/ones.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/run/program.h"

namespace stagecraft {
namespace {

// All other tests change one of these two: as they are, they load and run.
TEST(SmallArchive, OfALinearLayerRuns) {
  const TempFile file(SmallArchive::linear().bytes());
  const ExportedArchive archive(file.path());
  const GraphProgram program(archive.graph());
  EXPECT_EQ(archive.torch_version(), "2.13.0");
  EXPECT_EQ(archive.warnings().size(), 0U);
  const Arguments example = archive.example();
  EXPECT_EQ(program.run(example.args).toTensor().sum().item<double>(), 3 * 4 * 6.0);
  EXPECT_EQ(program.run({at::ones({7, 4})}).toTensor().size(0), 7);
}

TEST(SmallArchive, WithEverythingRuns) {
  const TempFile file(SmallArchive::rich().bytes());
  const ExportedArchive archive(file.path());
  const Graph graph = archive.graph();
  EXPECT_EQ(archive.warnings(), std::vector<std::string>{"not checked: f(x)"});
  const std::string text = to_text(graph);
  for (const char* part : {"also %fc.weight", "no_grad", "stagecraft::cond", "floor_div(x_dim0 + 1",
                           "x.size(0) <= 100", "aten::copy_(self=%count", "chunk"}) {
    EXPECT_THAT(text, testing::HasSubstr(part));
  }
  const c10::IValue output = GraphProgram(graph).run(archive.example().args);
  EXPECT_EQ(output.toTupleRef().elements().size(), 3U);
  EXPECT_EQ(graph.find_state("count")->tensor.item<float>(), 2);
  EXPECT_EQ(graph.find_state("fc.weight"), graph.find_state("tied.weight"));
}

}  // namespace
}  // namespace stagecraft
