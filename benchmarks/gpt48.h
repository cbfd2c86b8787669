#pragma once

#include <optional>

#include "stagecraft/plan/plan_problem.h"

namespace stagecraft {

/// The example of docs/planning.md: an embedding, 48 layers that are alike, and a head that costs
/// about three of them.
inline PlanProblem gpt48(int32_t ranks, int32_t microbatches,
                         std::optional<double> memory = std::nullopt) {
  const auto layer = [](const char* name, double f, double i, double w, double mf, double mw,
                        double weights) {
    PlanLayer result{.name = name, .output_bytes = 10, .weights = weights};
    result.cost.forward = f;
    result.cost.backward_input = i;
    result.cost.backward_weight = w;
    result.cost.memory_forward = mf;
    result.cost.memory_freed_by_input = mf - mw;
    result.cost.memory_freed_by_weight = mw;
    return result;
  };
  PlanProblem problem;
  problem.layers.push_back(layer("embedding", .5, .1, 1.5, 20, 0, 600));
  for (int l = 0; l < 48; ++l) problem.layers.push_back(layer("", 10, 10, 7, 100, 43, 400));
  problem.layers.push_back(layer("head", 30, 32, 28, 220, 90, 600));
  problem.ranks = same_ranks(ranks, memory);
  problem.link.latency = .05;
  problem.input_bytes = 1;
  problem.microbatches = microbatches;
  return problem;
}

}  // namespace stagecraft
