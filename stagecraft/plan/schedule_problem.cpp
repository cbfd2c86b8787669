#include "stagecraft/plan/schedule_problem.h"

#include <algorithm>
#include <cmath>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

void check_amount(double value, std::string_view what, std::string_view where, std::size_t index) {
  require<ArgumentError>(std::isfinite(value) && value >= 0,
                         "{} of {} {}: expected a finite number >= 0, got {}", what, where, index,
                         value);
}

// The memory that a rank needs for one microbatch of size 1 alone, with each W directly after its I
// (`at_once`), or after all I.
double sequential_peak(const ScheduleProblem& problem, Rank rank, bool at_once) {
  double held = 0;
  double peak = 0;
  const auto stages = problem.placement.stages(rank);
  for (const StageId s : stages) {
    const StageLoad& load = problem.stages[s.position()];
    held += load.memory_forward;
    peak = std::max(peak, held + load.peak_forward);
  }
  double weights = 0;  // peak of W if all I come first
  for (std::size_t i = stages.size(); i-- > 0;) {
    const StageLoad& load = problem.stages[stages[i].position()];
    const double after = load.is_split ? load.memory_input : 0;
    peak = std::max(peak, held + std::max(0.0, after - load.memory_forward) + load.peak_input);
    held += after - load.memory_forward;
    if (!load.is_split) continue;
    if (at_once) {
      peak = std::max(peak, held + load.peak_weight);
      held -= after;
    } else {
      weights = std::max(weights, load.peak_weight);
    }
  }
  return at_once ? peak : std::max(peak, held + weights);
}

}  // namespace

std::string_view to_string(Objective objective) {
  return objective == Objective::kStep ? "step" : "span";
}

bool ScheduleProblem::has_passing() const {
  return std::any_of(ranks.begin(), ranks.end(),
                     [](const RankLimit& rank) { return rank.passing > 0; });
}

void check_problem(const ScheduleProblem& problem) {
  const int32_t stages = problem.placement.num_stages();
  const int32_t ranks = problem.placement.num_ranks();
  require<ArgumentError>(problem.stages.size() == static_cast<std::size_t>(stages),
                         "the placement has {} stages, but there are loads of {}", stages,
                         problem.stages.size());
  require<ArgumentError>(problem.microbatches >= 1, "microbatches must be positive, got {}",
                         problem.microbatches);
  require<ArgumentError>(static_cast<int64_t>(stages) * problem.microbatches <= (int64_t{1} << 26),
                         "{} stages and {} microbatches: at most 2^26 pairs of them can be planned",
                         stages, problem.microbatches);
  for (int32_t s = 0; s < stages; ++s) {
    require<ArgumentError>(problem.placement.find_rank(StageId(s)).has_value(),
                           "stage {} is on no rank", s);
    const StageLoad& load = problem.stages[s];
    for (const auto& [value, name] :
         {std::pair{load.forward, "F"}, std::pair{load.backward_input, "I"},
          std::pair{load.backward_weight, "W"}, std::pair{load.backward.value_or(0), "B"},
          std::pair{load.memory_forward, "MF"}, std::pair{load.memory_input, "MW"},
          std::pair{load.peak_forward, "peak of F"}, std::pair{load.peak_input, "peak of I"},
          std::pair{load.peak_weight, "peak of W"}}) {
      check_amount(value, name, "stage", static_cast<std::size_t>(s));
    }
  }
  for (int32_t r = 0; r < ranks; ++r) {
    require<ArgumentError>(!problem.placement.stages(Rank(r)).empty(), "rank {} has no stage", r);
  }
  require<ArgumentError>(
      problem.ranks.empty() || problem.ranks.size() == static_cast<std::size_t>(ranks),
      "the placement has {} ranks, but there are limits of {}", ranks, problem.ranks.size());
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankLimit& limit = problem.ranks[r];
    require<ArgumentError>(limit.cap >= 0, "cap of rank {}: expected a number >= 0, got {}", r,
                           limit.cap);
    check_amount(limit.fixed, "fixed memory", "rank", r);
    check_amount(limit.passing, "passing memory", "rank", r);
    require<ArgumentError>(std::isfinite(limit.speed) && limit.speed > 0,
                           "speed of rank {}: expected a finite number > 0, got {}", r,
                           limit.speed);
  }
  require<ArgumentError>(problem.sizes.empty() ||
                             problem.sizes.size() == static_cast<std::size_t>(problem.microbatches),
                         "{} microbatches, but {} sizes", problem.microbatches,
                         problem.sizes.size());
  for (std::size_t m = 0; m < problem.sizes.size(); ++m) {
    check_amount(problem.sizes[m], "size", "microbatch", m);
  }
  require<ArgumentError>(!problem.graph || problem.graph->num_stages() == stages,
                         "the stage graph has {} stages, but the placement has {}",
                         problem.graph ? problem.graph->num_stages() : 0, stages);
  check_costs(cost_model(problem), ranks, stages, problem.microbatches);
}

CostModel cost_model(const ScheduleProblem& problem) {
  CostModel costs;
  for (std::size_t s = 0; s < problem.stages.size(); ++s) {
    const StageLoad& load = problem.stages[s];
    const Rank rank = problem.placement.get_rank(StageId(static_cast<int32_t>(s)));
    const double v = problem.ranks.empty() ? 1.0 : problem.ranks[rank.position()].speed;
    StageCost cost;
    cost.forward = load.forward / v;
    cost.backward_input = load.backward_input / v;
    cost.backward_weight = load.backward_weight / v;
    cost.backward = load.backward.value_or(load.backward_input + load.backward_weight) / v;
    cost.memory_forward = load.memory_forward;
    const double after = load.is_split ? load.memory_input : 0;
    cost.memory_freed_by_input = std::max(0.0, load.memory_forward - after);
    cost.memory_freed_by_weight = std::min(load.memory_forward, after);
    costs.stages.push_back(cost);
  }
  for (std::size_t m = 0; m < problem.sizes.size(); ++m) {
    const double x = problem.sizes[m];
    if (x == 1) continue;
    for (std::size_t s = 0; s < costs.stages.size(); ++s) {
      StageCost cost = costs.stages[s];
      for (double* value :
           {&cost.forward, &cost.backward_input, &cost.backward_weight, &*cost.backward,
            &cost.memory_forward, &cost.memory_freed_by_input, &cost.memory_freed_by_weight}) {
        *value *= x;
      }
      costs.microbatches.push_back(
          {StageId(static_cast<int32_t>(s)), MicrobatchId(static_cast<int32_t>(m)), cost});
    }
  }
  costs.link = problem.link;
  costs.links = problem.links;
  costs.output_bytes = problem.output_bytes;
  for (std::size_t s = 0; s < problem.stages.size(); ++s) costs.weights.push_back(0);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const auto stages = problem.placement.stages(Rank(static_cast<int32_t>(r)));
    if (!stages.empty()) costs.weights[stages.front().position()] = problem.ranks[r].fixed;
  }
  return costs;
}

StageGraph stage_graph(const ScheduleProblem& problem) {
  return problem.graph ? *problem.graph : StageGraph::chain(problem.placement.num_stages());
}

std::vector<Shortfall> find_shortfalls(const ScheduleProblem& problem) {
  check_problem(problem);
  std::vector<Shortfall> found;
  const double size =
      problem.sizes.empty() ? 1.0 : *std::max_element(problem.sizes.begin(), problem.sizes.end());
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const RankLimit& limit = problem.ranks[r];
    const Rank rank(static_cast<int32_t>(r));
    const double needed = size * std::min(sequential_peak(problem, rank, true),
                                          sequential_peak(problem, rank, false));
    const double slack = 1e-9 * std::max(1e-3, limit.cap - limit.fixed);
    if (limit.fixed + needed > limit.cap + slack) {
      found.push_back({rank, limit.cap, limit.fixed, needed});
    }
  }
  return found;
}

}  // namespace stagecraft
