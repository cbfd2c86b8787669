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

/// Time and memory of the actions of one stage, for a microbatch of size 1 on a rank of speed 1. If
/// a stage recomputes, the time of I or B includes the second forward, and `memory_forward` is that
/// of its inputs alone.
struct StageLoad {
  double forward = 1;          ///< F
  double backward_input = 1;   ///< I
  double backward_weight = 1;  ///< W
  /// Whether I and W are separate actions. Otherwise they are one B.
  bool is_split = true;
  /// Time of B for a stage whose backward is not split. Without a value: I + W.
  std::optional<double> backward = std::nullopt;

  /// The memory that a microbatch holds from the start of F to the end of I or B.
  double memory_forward = 1;
  /// The memory that a microbatch holds from the end of I to the end of W. If it is more than
  /// `memory_forward`, I takes the difference when it starts. Not used for a stage whose backward
  /// is not split.
  double memory_input = 1;
  /// The memory that an action needs in addition while it runs. `peak_input` is that of I or B.
  double peak_forward = 0;
  double peak_input = 0;
  double peak_weight = 0;

  friend bool operator==(const StageLoad&, const StageLoad&) = default;
};

/// The memory and the speed of a rank.
struct RankLimit {
  /// The most memory that the rank may hold at any moment.
  double cap = std::numeric_limits<double>::infinity();
  /// Memory held all the time: weights, gradients, optimizer state.
  double fixed = 0;
  /// The part of `fixed` that may be absent at times: bounds do not count on it.
  double passing = 0;
  /// Times are divided by it.
  double speed = 1;

  friend bool operator==(const RankLimit&, const RankLimit&) = default;
};

/// The time that a schedule minimises.
enum class Objective : uint8_t {
  kStep,  ///< the makespan: all ranks begin and end together
  kSpan,  ///< the longest time of a rank from its own first start to its own last end
};
/// "step" or "span".
std::string_view to_string(Objective objective);

/// The search for an order of each rank's actions: stages, ranks and microbatches are given.
struct ScheduleProblem {
  std::vector<StageLoad> stages;
  Placement placement = Placement::loop(1, 1);  ///< with the same number of stages
  /// By rank; empty: no limits.
  std::vector<RankLimit> ranks;
  /// Which stage reads the output of which stage. Without a value: a chain.
  std::optional<StageGraph> graph = std::nullopt;

  LinkCost link;                          ///< between every two ranks that `links` does not have
  std::vector<CostModel::PerLink> links;  ///< as in CostModel
  std::vector<double> output_bytes;       ///< as in CostModel

  int32_t microbatches = 1;
  /// A factor on times and memory for each microbatch. Empty: all are 1. Microbatches keep their
  /// order.
  std::vector<double> sizes;
  Objective objective = Objective::kStep;

  /// Whether a rank has memory that may be absent at times.
  bool has_passing() const;
};

/// ArgumentError, naming the entry, for numbers that are negative or undefined, or do not fit each
/// other.
void check_problem(const ScheduleProblem& problem);

/// The problem's costs for `simulate`. They do not include peaks, memory that I takes beyond that
/// of F (in them, W frees what F took), and caps, which differ by rank.
CostModel cost_model(const ScheduleProblem& problem);
StageGraph stage_graph(const ScheduleProblem& problem);

/// A rank that cannot hold one microbatch.
struct Shortfall {
  Rank rank;
  double cap = 0;
  double fixed = 0;
  double microbatch = 0;  ///< what the largest microbatch needs in addition to `fixed`

  /// Whether weights, gradients and state alone do not fit.
  bool is_fixed_alone() const { return fixed > cap; }
  double lacks() const { return fixed + (is_fixed_alone() ? 0 : microbatch) - cap; }
};

/// The ranks that cannot run the microbatches one after the other. A problem has a schedule if and
/// only if there is no such rank. ArgumentError as check_problem.
std::vector<Shortfall> find_shortfalls(const ScheduleProblem& problem);
inline bool feasible(const ScheduleProblem& problem) {
  return find_shortfalls(problem).empty();
}

}  // namespace stagecraft
