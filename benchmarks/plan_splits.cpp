#include "benchmarks/plan_splits.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "benchmarks/gpt48.h"
#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/plan/make_plan.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::bench {
namespace {

std::chrono::nanoseconds plan_seconds(const Suite& suite, double seconds) {
  return std::chrono::nanoseconds(static_cast<int64_t>(1e9 * (suite.quick() ? .02 : seconds)));
}

double with_1f1b(const PlanProblem& problem, const std::vector<int32_t>& begins) {
  const int32_t ranks = problem.num_ranks();
  const PlanChoice choice{.begins = begins,
                          .recompute = std::vector<bool>(static_cast<std::size_t>(ranks), false)};
  return evaluate_schedule(StageComposer(problem), choice,
                           build_schedule("1F1B", {ranks, problem.microbatches, 1}))
      .makespan;
}

void measure_memories(Suite& suite) {
  struct Goal {
    std::optional<double> memory;
    double time = 0;
  };
  const PlanProblem free = gpt48(8, 64);
  suite.report({"gpt48, equal layers + 1F1B, distance from 16935.8",
                std::abs(with_1f1b(free, equal_parts(50, 8)) - 16935.8), "", .1});
  for (const Goal& goal : std::vector<Goal>{{std::nullopt, 12180},
                                            {9000, 12210},
                                            {6500, 12410},
                                            {5600, 12720},
                                            {5200, 13800},
                                            {4800, 14300},
                                            {4400, 15000},
                                            {3600, 16850}}) {
    const std::string name =
        goal.memory ? fmt::format("gpt48, memory {}", *goal.memory) : "gpt48, memory unlimited";
    if (!suite.wants(name)) continue;
    const Plan plan = make_plan(gpt48(8, 64, goal.memory), {.time_limit = plan_seconds(suite, 10)});
    suite.report({fmt::format("{}: gap {:.2f} %, time", name, 100 * plan.gap()), plan.best.value,
                  "", goal.time});
    if (suite.quick()) return;
  }
}

void measure_quick_plans(Suite& suite) {
  for (const std::optional<double> memory : {std::optional<double>(), std::optional(6500.0)}) {
    const std::string name =
        fmt::format("speed, whole plan of gpt48 in 1 s, {}, gap", memory ? "6500" : "unlimited");
    if (!suite.wants(name)) continue;
    const auto begin = std::chrono::steady_clock::now();
    const Plan plan = make_plan(gpt48(8, 64, memory), {.time_limit = plan_seconds(suite, .95)});
    const double took =
        std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    suite.report({name, 100 * plan.gap(), "%", .5});
    suite.report({name + ": seconds", took, "s", 1.0});
  }
}

/// Sizes of mean 1 whose logarithms are normal with deviation .3.
PlanProblem uneven_problem(int32_t ranks, int32_t microbatches, uint64_t seed) {
  PlanProblem problem;
  for (int32_t l = 0; l < ranks; ++l) {
    problem.layers.emplace_back().cost = {.forward = 1000,
                                          .backward_input = 1000,
                                          .backward_weight = 800,
                                          .memory_forward = 100,
                                          .memory_freed_by_input = 60,
                                          .memory_freed_by_weight = 40};
  }
  problem.link.latency = 20;
  problem.microbatches = microbatches;
  std::mt19937_64 random(seed);
  std::lognormal_distribution<double> draw(0, .3);
  double sum = 0;
  for (int32_t m = 0; m < microbatches; ++m) sum += problem.sizes.emplace_back(draw(random));
  for (double& size : problem.sizes) size *= microbatches / sum;
  problem.ranks = same_ranks(ranks, 1.95 * ranks * 100);
  return problem;
}

void measure_uneven_sizes(Suite& suite) {
  for (const int32_t ranks : {4, 8}) {
    for (const int32_t microbatches : {16, 32, 64}) {
      const std::string name = fmt::format("sizes, {} ranks, {} microbatches", ranks, microbatches);
      if (!suite.wants(name)) continue;
      const PlanProblem problem = uneven_problem(
          ranks, microbatches, static_cast<uint64_t>(ranks) + static_cast<uint64_t>(microbatches));
      PlanOptions options{.time_limit = plan_seconds(suite, 10)};
      options.space.stages_per_rank = {1};
      options.space.recompute = RecomputeChoice::kNone;
      const Plan given = plan_schedule_only(problem, options);
      options.reorder = true;
      const Plan reordered = plan_schedule_only(problem, options);
      suite.report({name + ", reordered: gap", 100 * reordered.gap(), "%", 1.0});
      suite.report({name + ", in order, by 1F1B",
                    given.best.value / with_1f1b(problem, equal_parts(ranks, ranks)), "x", .92});
      if (suite.quick()) return;
    }
  }
}

}  // namespace

void measure_splits(Suite& suite) {
  measure_quick_plans(suite);
  if (suite.wants("gpt48, memory")) measure_memories(suite);
  measure_uneven_sizes(suite);
}

}  // namespace stagecraft::bench
