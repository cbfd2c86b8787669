#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Passed to SynthesisOptions::progress whenever a better schedule was found.
struct SynthesisProgress {
  double value = 0;  ///< of the objective
  double bound = 0;
  double gap = 0;  ///< value / bound - 1
  int64_t rounds = 0;
  double seconds = 0;
  std::string_view found_by;
};

/// Options of synthesise.
struct SynthesisOptions {
  std::chrono::nanoseconds time_limit = std::chrono::seconds(5);
  /// Rounds of the search, instead of a time. The result then depends on the problem and the seed
  /// alone. A round costs about as much as building and filling one schedule.
  std::optional<int64_t> rounds = std::nullopt;
  uint64_t seed = 1;
  std::function<void(const SynthesisProgress&)> progress;
  /// The search ends soon after it becomes true, with the best so far.
  const std::atomic<bool>* cancel = nullptr;
};

/// The result of synthesise.
struct Synthesis {
  /// At level kCompute, every kind of action of a stage in ascending order of microbatches; without
  /// a value if the problem has no schedule (`shortfalls` says why).
  std::optional<Schedule> schedule;
  std::vector<Shortfall> shortfalls;

  double makespan = 0;
  double span = 0;
  double value = 0;           ///< the makespan or the span: that of the objective
  std::vector<double> peaks;  ///< by rank, `fixed` and peaks of actions included
  Bound bound;
  std::string found_by;  ///< "due dates, backwards, filled", "1F1B", ...
  int64_t rounds = 0;
  double seconds = 0;
  /// Whether nothing better exists: the bound was reached, or all orders of a small problem were
  /// tried. (If microbatches differ, all orders that keep their sequence.)
  bool is_optimal = false;

  /// The distance from the bound, as a share of it; 0 if the bound is 0.
  double gap() const { return bound.value > 0 ? value / bound.value - 1 : 0; }
};

/// Looks for the best order of the given stages. Stops at the bound. Every schedule that it returns
/// was verified, simulated and found within the caps; none is worse than a built-in schedule that
/// fits. ArgumentError as check_problem.
Synthesis synthesise(const ScheduleProblem& problem, const SynthesisOptions& options = {});

/// The objective of the best of a few seeds: about the value that synthesise finds in `rounds`
/// rounds, but without its checks. Nothing for an infeasible problem. Used to compare many
/// problems.
std::optional<double> quick_score(const ScheduleProblem& problem, int64_t rounds = 6);

}  // namespace stagecraft
