#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/graph/grouped_mm.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/tree/tree.h"
#include "tests/support/reference.h"
#include "tests/zoo_pt2/zoo.h"
#include "tests/zoo_pt2/zoo_step.h"

namespace stagecraft {
namespace {

const std::array<std::string, 3> kMixtures = {"mixtral", "qwen3_moe", "gpt_oss"};

std::vector<ZooEntry> mixtures() {
  std::vector<ZooEntry> zoo = read_zoo();
  std::erase_if(
      zoo, [](const ZooEntry& entry) { return std::ranges::count(kMixtures, entry.name) == 0; });
  EXPECT_TRUE(zoo.size() == kMixtures.size() || std::getenv("SC_ZOO_ONLY") != nullptr);
  return zoo;
}

TEST(ZooPt2Experts, AreProductsOfGroups) {
  for (const ZooEntry& entry : mixtures()) {
    EXPECT_THAT(to_text(load_exported(zoo_path(entry.name + ".pt2"))),
                testing::HasSubstr(kGroupedMmOperator))
        << entry.name;
  }
}

// One microbatch for each case, of different shapes, through two stages on two ranks and on one.
TEST(ZooPt2Experts, PipelinedInTwoStagesGiveTheBitsOfPython) {
  for (const ZooEntry& entry : mixtures()) {
    const std::vector<oracle::Case> cases =
        oracle::read_case_file(zoo_path(entry.name + ".cases.pt"));
    const std::map<std::string, at::Tensor> expected = summed_grads(cases);
    for (const int32_t ranks : {2, 1}) {
      const Graph graph = load_exported(zoo_path(entry.name + ".pt2"));
      const Pipe pipe(graph, {.policy = best_at_modules(2)},
                      {.by_default = SharedParameter::kTransmit});
      Pipeline run(
          pipe,
          {.schedule = ranks == 2 ? "1F1B" : "ZBVZeroBubble", .ranks = ranks, .loss = seeded_loss});
      const StepResult result = run.step(microbatches_of(cases), {.outputs = OutputMode::kEach});
      ASSERT_EQ(result.outputs.size(), cases.size());
      for (std::size_t i = 0; i < cases.size(); ++i) {
        const std::vector<c10::IValue> leaves = tree::flatten(result.outputs[i]).leaves;
        const std::vector<c10::IValue> wanted = cases[i].get("outputs").toListRef().vec();
        ASSERT_EQ(leaves.size(), wanted.size());
        for (std::size_t k = 0; k < leaves.size(); ++k) {
          EXPECT_EQ(difference("output " + std::to_string(k), leaves[k], wanted[k]), "")
              << entry.name << ", case " << i << ", " << ranks << " ranks";
        }
      }
      for (const auto& [name, sum] : expected) {
        const GraphState* state = graph.find_state(name);
        ASSERT_NE(state, nullptr) << name;
        EXPECT_EQ(difference(name, state->tensor.grad(), sum), "")
            << entry.name << ", " << ranks << " ranks";
      }
    }
  }
}

}  // namespace
}  // namespace stagecraft
