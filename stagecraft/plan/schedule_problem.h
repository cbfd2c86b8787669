#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// What the actions of one stage take, for a microbatch of size 1 on a rank of speed 1. A stage
/// that recomputes has the time of its second forward in I or B, and the bytes of its inputs alone
/// in `memory_forward`.
struct StageLoad {
  double forward = 1;          ///< F
  double backward_input = 1;   ///< I
  double backward_weight = 1;  ///< W
  /// I and W are actions of their own; otherwise one B.
  bool is_split = true;
  /// B of a stage that is not split. Without it: I + W.
  std::optional<double> backward = std::nullopt;

  /// What a microbatch holds from the start of F to the end of I or B.
  double memory_forward = 1;
  /// What it holds from then on until the end of W. If that is more than `memory_forward`, I takes
  /// the difference when it starts. Without meaning for a stage that is not split.
  double memory_input = 1;
  /// What an action needs beside that while it runs; `peak_input` is that of I or B.
  double peak_forward = 0;
  double peak_input = 0;
  double peak_weight = 0;

  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

/// What a rank has.
struct RankLimit {
  /// The most that it may hold at any moment.
  double cap = std::numeric_limits<double>::infinity();
  /// Held all the time: weights, gradients, optimizer state.
  double fixed = 0;
  /// The part of `fixed` that may be absent at times: bounds do not count on it.
  double passing = 0;
  /// Times are divided by it.
  double speed = 1;

  friend bool operator==(const RankLimit&, const RankLimit&) = default;
};

/// What a schedule is to make small.
enum class Objective : uint8_t {
  kStep,  ///< the makespan: all ranks begin and end together
  kSpan,  ///< the longest time of a rank from its own first start to its own last end
};
/// "step" or "span".
std::string_view to_string(Objective objective);

/// The search for an order of each rank's actions: stages, ranks and microbatches are given.
struct ScheduleProblem {
  std::vector<StageLoad> stages;
  Placement placement = Placement::loop(1, 1);  ///< of as many stages
  /// By rank; empty: no limits.
  std::vector<RankLimit> ranks;
  /// Who reads whose output; nothing: a chain.
  std::optional<StageGraph> graph = std::nullopt;

  LinkCost link;                          ///< between every two ranks that `links` does not have
  std::vector<CostModel::PerLink> links;  ///< as in CostModel
  std::vector<double> output_bytes;       ///< as in CostModel

  int32_t microbatches = 1;
  /// By microbatch, a factor on times and memory; empty: all are 1. Microbatches keep their order.
  std::vector<double> sizes;
  Objective objective = Objective::kStep;

  /// Whether a rank has memory that may be absent at times.
  bool has_passing() const;
};

/// ArgumentError, naming the entry, for numbers that are negative or undefined, or do not fit each
/// other.
void check_problem(const ScheduleProblem& problem);

/// The problem's costs for `simulate`. Peaks are not in them, nor what I takes beyond F's memory
/// (there W gives back what F took), nor the caps, which differ by rank.
CostModel cost_model(const ScheduleProblem& problem);
StageGraph stage_graph(const ScheduleProblem& problem);

/// A rank that cannot hold one microbatch.
struct Shortfall {
  Rank rank;
  double cap = 0;
  double fixed = 0;
  double microbatch = 0;  ///< what one microbatch, the largest, needs beside `fixed`

  /// Weights, gradients and state alone do not fit.
  bool is_fixed_alone() const { return fixed > cap; }
  double lacks() const { return fixed + (is_fixed_alone() ? 0 : microbatch) - cap; }
};

/// The ranks that cannot run the microbatches one after the other. A problem without one has a
/// schedule; with one it has none. ArgumentError as check_problem.
std::vector<Shortfall> find_shortfalls(const ScheduleProblem& problem);
inline bool feasible(const ScheduleProblem& problem) {
  return find_shortfalls(problem).empty();
}

}  // namespace stagecraft
