#include "tests/support/zoo.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <filesystem>
#include <sstream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/TensorOperators.h>
#include <ATen/ops/mean.h>
#include <ATen/ops/pow.h>
#include <c10/core/GradMode.h>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph_text.h"
#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/pipeline.h"
#include "tests/graph/graph_check.h"
#include "tests/partition/pipe_check.h"
#include "tests/partition/saved_case.h"
#include "tests/support/reference.h"

namespace stagecraft {
namespace {

std::string lines_without(const std::string& text, const std::string& word) {
  std::istringstream in(text);
  std::string result;
  for (std::string line; std::getline(in, line);) {
    if (line.find(word) == std::string::npos) result += line + "\n";
  }
  return result;
}

class Zoo : public testing::TestWithParam<zoo::ZooModel> {};

TEST_P(Zoo, IsCapturedCutAndTrained) {
  const zoo::ZooModel& model = GetParam();
  const Graph graph = expect_same(model.body, model.inputs, {}, {4, 5, 2});
  for (const int32_t stages : {2, 3, 4}) {
    SCOPED_TRACE(std::to_string(stages) + " stages");
    const Pipe pipe(graph, {.policy = equal_cost(stages)});
    ASSERT_EQ(pipe.num_stages(), stages);
    for (int32_t i = 0; i < stages; ++i) expect_round_trip(pipe.stage_graph(StageId(i)));
    if (!model.is_random) {
      expect_same_run(pipe, model.body, model.inputs(4));
      expect_same_run(pipe, model.body, model.inputs(7));
    }
    EXPECT_EQ(
        train_everywhere(pipe, model.inputs, {.uncut_tolerance = model.regroups ? 1e-6 : 0.0}), "")
        << pipe.call_text();
  }
}

TEST(ZooFiles, RunInAnotherProcess) {
  const auto folder = std::filesystem::path(testing::TempDir()) / "stagecraft_zoo_files";
  std::filesystem::remove_all(folder);
  std::filesystem::create_directories(folder);
  for (const zoo::ZooModel& model : zoo::all()) {
    const Graph graph =
        capture({model.body.forward, model.body.parameters, model.body.buffers}, model.inputs(4));
    for (const int32_t stages : {2, 3, 4}) {
      const std::string name = model.name + "." + std::to_string(stages);
      save_case(Pipe(graph, {.policy = equal_cost(stages)}), model.inputs(5), folder, name);
    }
  }
  std::string printed;
  const std::string command = std::string(SC_RUN_SAVED_CASES) + " '" + folder.string() + "'";
  FILE* child = popen(command.c_str(), "r");
  ASSERT_NE(child, nullptr);
  for (std::array<char, 512> line{}; std::fgets(line.data(), line.size(), child) != nullptr;) {
    printed += line.data();
  }
  EXPECT_EQ(pclose(child), 0) << printed;
  EXPECT_EQ(std::ranges::count(printed, '\n'), 33) << printed;
  EXPECT_EQ(lines_without(printed, ": ok"), "");
  std::filesystem::remove_all(folder);
}

/// The weights after some steps of training on `stages` stages, one or two on a rank.
std::vector<at::Tensor> trained(int32_t stages, const std::string& schedule, uint64_t seed) {
  const zoo::ZooModel model = zoo::with_dropout();  // the same weights every time
  const Graph graph = capture({model.body.forward, model.body.parameters, {}}, model.inputs(4));
  const Pipe pipe(graph, {.policy = equal_operators(stages)});
  Pipeline run(pipe.build_stages(),
               {.schedule = schedule,
                .loss = Loss([](const at::Tensor& output) { return output.pow(2).mean(); }),
                .ports = pipe.ports(),
                .seed = seed,
                .threads_per_rank = 1});
  const at::Tensor rows = model.inputs(14).args[0].toTensor();
  for (int step = 0; step < 3; ++step) {
    run.step({rows}, {}, {}, {.microbatches = 8});
    const c10::NoGradGuard no_grad;
    for (const at::Tensor& parameter : pipe.parameters()) {
      parameter.sub_(parameter.grad() * 0.1);
      parameter.mutable_grad().reset();
    }
  }
  std::vector<at::Tensor> weights;
  for (const auto& [name, tensor] : model.body.parameters) weights.push_back(tensor.detach());
  return weights;
}

TEST(ZooDropout, IsReproducibleBySeedOnFourRanks) {
  const std::vector<at::Tensor> expected = trained(1, "1F1B", 3);
  EXPECT_EQ(difference("4 ranks", trained(4, "1F1B", 3), expected), "");
  EXPECT_EQ(difference("4 ranks", trained(4, "1F1B", 3), expected), "");
  EXPECT_EQ(difference("4 ranks, 8 stages", trained(8, "Interleaved1F1B", 3), expected), "");
  EXPECT_EQ(difference("4 ranks, 8 stages", trained(8, "ZBVZeroBubble", 3), expected), "");
  EXPECT_NE(difference("another seed", trained(4, "1F1B", 4), expected), "");
}

INSTANTIATE_TEST_SUITE_P(Models, Zoo, testing::ValuesIn(zoo::all()),
                         [](const auto& model) { return model.param.name; });

}  // namespace
}  // namespace stagecraft
