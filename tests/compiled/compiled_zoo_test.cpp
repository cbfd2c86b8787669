// Models of Hugging Face, compiled, against the gradients of Python's eager models.

#include <algorithm>
#include <cstddef>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>

#include "stagecraft/compiled/compiled_pipe.h"
#include "stagecraft/runtime/pipeline.h"
#include "stagecraft/tree/tree.h"
#include "tests/zoo_pt2/zoo.h"
#include "tests/zoo_pt2/zoo_step.h"

namespace stagecraft {
namespace {

constexpr double kTolerance = 1e-5;
// The gradient of some parameters is 0 but for rounding, such as that of a bias of attention's
// keys.
constexpr double kLeastShare = 1e-3;

struct Way {
  const char* schedule;
  int32_t ranks;
};

double largest(const at::Tensor& tensor) {
  return tensor.numel() == 0 ? 0 : tensor.detach().abs().max().item().toDouble();
}

/// Relative to the largest element of `expected`, or to `least` if that is more.
double difference_of(const at::Tensor& got, const at::Tensor& expected, double least) {
  if (expected.numel() == 0) return 0;
  return largest(got.detach().to(at::kDouble).sub(expected.detach().to(at::kDouble))) /
         std::max(largest(expected), least);
}

// One microbatch for each case. The cases have different sizes.
TEST(CompiledZoo, HasTheGradientsOfEagerModels) {
  const std::vector<ZooEntry> zoo = read_zoo();
  ASSERT_FALSE(zoo.empty());
  for (const ZooEntry& entry : zoo) {
    const std::vector<oracle::Case> cases =
        oracle::read_case_file(zoo_path(entry.name + ".cases.pt"));
    const std::map<std::string, at::Tensor> expected = summed_grads(cases);
    double least = 0;
    for (const auto& [name, sum] : expected) {
      if (sum.defined()) least = std::max(least, kLeastShare * largest(sum));
    }
    const CompiledPipe pipe = CompiledPipe::load(zoo_path(entry.name + ".scp"));
    const std::vector<Way> ways = pipe.num_stages() == 1
                                      ? std::vector<Way>{{"1F1B", 1}}
                                      : std::vector<Way>{{"1F1B", 2}, {"ZBVZeroBubble", 1}};
    for (const Way& way : ways) {
      const std::string where = entry.name + ", " + way.schedule;
      Pipeline run(pipe, {.schedule = way.schedule, .ranks = way.ranks, .loss = seeded_loss});
      const StepResult result = run.step(microbatches_of(cases), {.outputs = OutputMode::kEach});
      double worst = 0;
      for (std::size_t m = 0; m < cases.size(); ++m) {
        const std::vector<c10::IValue> leaves = tree::flatten(result.outputs.at(m)).leaves;
        const std::vector<c10::IValue> wanted = cases[m].get("outputs").toListRef().vec();
        ASSERT_EQ(leaves.size(), wanted.size()) << where;
        for (std::size_t i = 0; i < leaves.size(); ++i) {
          const double far = difference_of(leaves[i].toTensor(), wanted[i].toTensor(), 1e-6);
          EXPECT_LT(far, kTolerance) << where << ", output " << i << " of case " << m;
          worst = std::max(worst, far);
        }
      }
      std::size_t compared = 0;
      for (const auto& [name, sum] : expected) {
        const GraphState* state = pipe.graph().find_state(name);
        // A tied weight has one of its names.
        if (state == nullptr || !sum.defined()) continue;
        const at::Tensor grad = state->tensor.grad();
        ASSERT_TRUE(grad.defined()) << where << ", " << name;
        const double far = difference_of(grad, sum, least);
        EXPECT_LT(far, kTolerance) << where << ", " << name;
        worst = std::max(worst, far);
        ++compared;
      }
      EXPECT_GE(compared + 1, expected.size()) << where;
      std::cout << where << ": " << compared << " gradients, worst relative difference " << worst
                << "\n";
      for (const at::Tensor& parameter : pipe.parameters()) parameter.mutable_grad().reset();
    }
  }
}

}  // namespace
}  // namespace stagecraft
