// Plans the pipeline of a model from the costs of its layers: split, placement, recompute and order
// of actions. Needs no torch.
//
//   build/bin/plan [FILE.plan]

#include <chrono>
#include <cstdio>
#include <exception>
#include <string>

#include "stagecraft/base/write_file.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"

namespace {

using namespace stagecraft;

PlanLayer layer(const char* name, double forward, double input, double weight, double activations) {
  PlanLayer result{.name = name, .output_bytes = 10, .weights = 300, .state = 100};
  result.cost.forward = forward;
  result.cost.backward_input = input;
  result.cost.backward_weight = weight;
  result.cost.memory_forward = activations;
  result.cost.memory_freed_by_input = 0.6 * activations;
  result.cost.memory_freed_by_weight = 0.4 * activations;
  return result;
}

int run(const std::string& file) {
  PlanProblem problem;
  problem.layers.push_back(layer("embedding", 0.5, 0.1, 1.5, 20));
  for (int i = 0; i < 12; ++i) {
    problem.layers.push_back(layer(("block " + std::to_string(i)).c_str(), 10, 10, 7, 100));
  }
  problem.layers.push_back(layer("head", 30, 32, 28, 220));
  problem.ranks = same_ranks(4, 4000);
  problem.link.latency = 0.05;
  problem.microbatches = 16;

  const Plan plan = make_plan(problem, {.time_limit = std::chrono::milliseconds(500)});
  std::puts(to_text(plan).c_str());
  std::printf("no order of these stages takes less than %.0f; the plan takes %.0f\n",
              plan.best.bound.value, plan.best.value);

  write_file(file, to_plan_file(to_saved(plan)));
  std::printf("run: stagecraft simulate %s\n", file.c_str());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc > 1 ? argv[1] : "example.plan");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "plan: %s\n", error.what());
    return 1;
  }
}
