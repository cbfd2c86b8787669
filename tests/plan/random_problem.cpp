#include "tests/plan/random_problem.h"

#include <algorithm>
#include <cmath>

namespace stagecraft {
namespace {

// Caps from what one microbatch needs up to `most` times that.
void set_caps(Random& random, ScheduleProblem& problem, double most) {
  const int32_t ranks = problem.placement.num_ranks();
  problem.ranks.resize(static_cast<std::size_t>(ranks));
  for (RankLimit& limit : problem.ranks) limit.cap = 0;
  for (const Shortfall& shortfall : find_shortfalls(problem)) {
    RankLimit& limit = problem.ranks[shortfall.rank.position()];
    const double factor = 1 + (most - 1) * static_cast<double>(random.below(101)) / 100;
    limit.cap = shortfall.fixed + std::ceil(shortfall.microbatch * factor);
  }
}

}  // namespace

ScheduleProblem tiny_problem(Random& random, int32_t pairs) {
  ScheduleProblem problem;
  int32_t ranks = 0;
  int32_t stages = 0;
  do {
    ranks = random.between(2, 3);
    stages = ranks * random.between(1, 2);
    problem.microbatches = random.between(2, 5);
  } while (stages * problem.microbatches > pairs);
  problem.placement = Placement::from_style(random.one_in(2) ? "v" : "loop", ranks, stages);
  const bool is_alike = random.one_in(3);
  for (int32_t s = 0; s < stages; ++s) {
    StageLoad load;
    load.forward = random.between(2, 9);
    load.backward_input = random.between(2, 9);
    load.backward_weight = random.between(1, 9);
    load.memory_forward = random.between(4, 9);
    load.memory_input = random.between(0, static_cast<int32_t>(load.memory_forward));
    problem.stages.push_back(is_alike && s > 0 ? problem.stages.front() : load);
  }
  problem.link.latency = random.between(0, 3);
  problem.objective = random.one_in(2) ? Objective::kSpan : Objective::kStep;
  set_caps(random, problem, 2.5);
  return problem;
}

ScheduleProblem odd_problem(Random& random) {
  ScheduleProblem problem;
  const int32_t ranks = random.between(1, 4);
  const int32_t stages = ranks * random.between(1, 3);
  problem.microbatches = random.between(1, 7);
  problem.placement = Placement::from_style(random.one_in(2) ? "v" : "loop", ranks, stages);
  const bool is_huge = random.one_in(4);
  const auto number = [&] {
    if (random.one_in(5)) return 0.0;
    const double value = random.between(1, 1000) / 8.0;
    return is_huge ? value * std::pow(10.0, random.between(-6, 6)) : value;
  };
  for (int32_t s = 0; s < stages; ++s) {
    StageLoad load;
    load.forward = number();
    load.backward_input = number();
    load.backward_weight = number();
    load.is_split = !random.one_in(4);
    if (random.one_in(3)) load.backward = number();
    load.memory_forward = number();
    load.memory_input = number();
    if (random.one_in(3)) load.peak_forward = number();
    if (random.one_in(3)) load.peak_input = number();
    if (random.one_in(3)) load.peak_weight = number();
    problem.stages.push_back(load);
  }
  if (random.one_in(3) && stages > 2) {
    const int32_t from = random.between(0, stages - 3);
    const StageEdge skip{StageId(from), StageId(random.between(from + 2, stages - 1))};
    problem.graph = StageGraph::chain(stages).with_edges({&skip, 1});
  }
  problem.link.latency = number();
  if (random.one_in(2)) problem.link.bandwidth = random.between(1, 50);
  problem.output_bytes = {number()};
  if (stages > 1) problem.output_bytes.push_back(number());
  if (ranks > 1 && random.one_in(2)) {
    problem.links.push_back({Rank(0), Rank(1), {number(), std::nullopt}});
    problem.links.push_back({Rank(1), Rank(0), {number(), 3.0}});
  }
  if (random.one_in(3)) {
    for (int32_t m = 0; m < problem.microbatches; ++m) {
      problem.sizes.push_back(random.between(1, 12) / 4.0);
    }
  }
  set_caps(random, problem, 3);
  for (RankLimit& limit : problem.ranks) {
    limit.speed = random.one_in(3) ? random.between(1, 8) / 4.0 : 1;
    if (random.one_in(4)) {
      limit.fixed = random.between(1, 100);
      limit.cap += limit.fixed;
    }
    // Where no memory is needed at all, and where there is no cap.
    if (random.one_in(6)) limit.cap = std::numeric_limits<double>::infinity();
  }
  problem.objective = random.one_in(2) ? Objective::kSpan : Objective::kStep;
  return problem;
}

}  // namespace stagecraft
