// Exported models on a CUDA device.

#include <algorithm>
#include <exception>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/ops/allclose.h>
#include <c10/core/GradMode.h>

#include "stagecraft/exported/exported_archive.h"
#include "stagecraft/graph/effects.h"
#include "stagecraft/graph/passes/evaluation.h"
#include "stagecraft/graph/passes/move.h"
#include "stagecraft/graph/run/program.h"
#include "stagecraft/tree/tree.h"
#include "tests/gpu/gpu_test.h"
#include "tests/zoo_pt2/zoo.h"

namespace stagecraft {
namespace {

Arguments on_device(const Arguments& arguments, c10::Device device) {
  auto move = [&](const c10::IValue& value) {
    return tree::map(value, [&](const c10::IValue& leaf) -> c10::IValue {
      if (!leaf.isTensor() || !leaf.toTensor().defined()) return leaf;
      return leaf.toTensor().detach().to(device);
    });
  };
  Arguments result;
  for (const c10::IValue& value : arguments.args) result.args.push_back(move(value));
  for (const auto& [name, value] : arguments.kwargs) result.kwargs.set(name, move(value));
  return result;
}

Graph load_for_evaluation(const ZooEntry& entry) {
  return for_evaluation(load_exported(zoo_path(entry.name + ".pt2")));
}

std::vector<c10::IValue> run(const Graph& graph, const Arguments& arguments) {
  const c10::NoGradGuard no_grad;
  return tree::flatten(GraphProgram(graph).run(arguments.args, arguments.kwargs)).leaves;
}

using ExportedGpu = GpuTest;

// Exported on the CPU, with its devices frozen in; run here, against the CPU.
TEST_F(ExportedGpu, RunsOnTheDeviceThatItIsMovedTo) {
  if (!std::ifstream(zoo_path("index.json"))) GTEST_SKIP() << "run the test zoo_pt2.export first";
  std::size_t compared = 0;
  for (const ZooEntry& entry : read_zoo()) {
    if (entry.kind == "refused") continue;
    // Writes to one place from several threads; two trained views of one piece of memory.
    if (entry.name == "scatter_gather" || entry.name == "odd_weights") continue;
    SCOPED_TRACE(entry.name);
    const Graph graph = load_for_evaluation(entry);
    const bool is_drawn = std::ranges::any_of(
        graph.parts().nodes, [](const GraphNode& node) { return is_random(node); });
    const oracle::Case one = oracle::read_case_file(zoo_path(entry.name + ".cases.pt")).front();
    try {
      const auto got = run(move_to(graph, gpu_), on_device(arguments_of(one), gpu_));
      const auto expected = run(load_for_evaluation(entry), on_device(arguments_of(one), at::kCPU));
      ASSERT_EQ(got.size(), expected.size());
      for (std::size_t i = 0; i < got.size() && !is_drawn; ++i) {
        if (!got[i].isTensor() || !got[i].toTensor().defined()) continue;
        EXPECT_TRUE(at::allclose(got[i].toTensor().cpu(), expected[i].toTensor(), /*rtol=*/2e-2,
                                 /*atol=*/2e-3, /*equal_nan=*/true))
            << "output " << i;
        ++compared;
      }
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();
    }
  }
  std::cout << compared << " outputs\n";
  EXPECT_GT(compared, 0U);
}

}  // namespace
}  // namespace stagecraft
