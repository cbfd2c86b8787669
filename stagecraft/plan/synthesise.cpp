#include "stagecraft/plan/synthesise.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/search.h"
#include "stagecraft/plan/word.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {
namespace {

// Throws unless verify and simulate confirm the result of the search.
void confirm(const ScheduleProblem& problem, const plan::Instance& in, Synthesis& result) {
  const StageGraph graph = stage_graph(problem);
  verify_or_throw(*result.schedule, graph, "synthesise", {.microbatches = problem.microbatches});
  const Simulation simulation = simulate(*result.schedule, cost_model(problem), graph);
  const double slack = 1e-9 * std::max(simulation.makespan, 1e-3);
  require<Error>(
      std::abs(simulation.makespan - result.makespan) <= slack &&
          std::abs(simulation.span - result.span) <= slack,
      "synthesise: the search found a makespan of {} and a span of {}, the simulation {} and {}",
      result.makespan, result.span, simulation.makespan, simulation.span);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const double peak = std::max(result.peaks[r], simulation.ranks[r].peak_memory);
    require<Error>(peak <= problem.ranks[r].fixed + plan::with_slack(in.cap[r]),
                   "synthesise: rank {} holds {}, its cap is {}", r, peak, problem.ranks[r].cap);
  }
}

}  // namespace

Synthesis synthesise(const ScheduleProblem& problem, const SynthesisOptions& options) {
  Synthesis result;
  result.shortfalls = find_shortfalls(problem);
  const plan::Instance in(problem);
  const Bound reachable = plan::tight_bound(in);
  result.bound = problem.has_passing() ? tight_bound(problem) : reachable;
  if (!result.shortfalls.empty()) return result;
  plan::Search search(problem, in, reachable.value, options);
  search.run();
  result.schedule = plan::to_schedule(problem, search.words());
  plan::Evaluator evaluator(in);
  const plan::Score score = evaluator.run(search.words());
  result.makespan = score.makespan;
  result.span = score.span;
  result.value = score.value;
  // If the order is optimal, bound and value are the same sum, rounded in a different order.
  if (result.bound.value <= result.value * (1 + 1e-9)) {
    result.bound.value = std::min(result.bound.value, result.value);
  }
  result.peaks = evaluator.peaks();
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    result.peaks[r] += problem.ranks[r].fixed;
  }
  result.found_by = search.found_by();
  result.rounds = search.rounds();
  result.seconds = search.seconds();
  result.is_optimal = search.is_optimal();
  confirm(problem, in, result);
  return result;
}

std::optional<double> quick_score(const ScheduleProblem& problem, int64_t rounds) {
  if (!feasible(problem)) return std::nullopt;
  const plan::Instance in(problem);
  SynthesisOptions options;
  options.rounds = rounds;
  plan::Search search(problem, in, plan::lower_bound(in).value, options);
  search.run_seeds(rounds);
  return search.value();
}

}  // namespace stagecraft
