#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft {

/// When an action ran. Actions without a cost have start == end; one that did not run, in the
/// recording of a step that failed, has end < start.
struct Interval {
  double start = 0;
  double end = 0;

  static constexpr Interval not_run() { return {0, -1}; }
  constexpr bool ran() const { return end >= start; }

  friend bool operator==(const Interval&, const Interval&) = default;
};

/// Memory of a rank from `time` on, until the next sample.
struct MemorySample {
  double time = 0;
  double memory = 0;

  friend bool operator==(const MemorySample&, const MemorySample&) = default;
};

/// What one rank did in a simulation.
struct RankStats {
  double first_start = 0;  ///< of compute
  double last_end = 0;
  double busy = 0;              ///< time spent computing
  double bubble = 0;            ///< 1 - busy / makespan; 0 when the makespan is 0
  double exposed_transfer = 0;  ///< time it was idle only because a transfer was under way
  double exposed_gather = 0;    ///< time it was idle only because weights were not there yet
  double peak_memory = 0;       ///< weights included
  int64_t transfers_sent = 0;
};

/// One step of the critical path: an action, and why it could not start earlier.
struct PathStep {
  /// Why a step could not start earlier.
  enum class Cause : uint8_t {
    kStart,     ///< it started at time 0
    kRank,      ///< its rank was busy with the step before
    kValue,     ///< it needed the result of the step before, on the same rank
    kTransfer,  ///< it needed the result of the step before, from another rank, or its rank waited
                ///< until that result was sent
    kGather,    ///< the weights of its stage were not there yet
  };
  Rank rank;
  std::size_t offset = 0;  ///< of the action in its rank's list
  Cause cause = Cause::kStart;
};

/// Where a rank first went over the memory cap.
struct OverCap {
  Rank rank;
  std::optional<std::size_t> offset = std::nullopt;  ///< of the action; nothing for weights alone
  double time = 0;
  double memory = 0;
};

/// The results of a simulation.
struct Simulation {
  double makespan = 0;  ///< from 0 to the last end of any action
  double span = 0;      ///< over the ranks, the longest from own first start to own last end
  double bubble = 0;    ///< share of all ranks' time until the makespan without compute
  double exposed_transfer = 0;  ///< over all ranks
  double exposed_gather = 0;    ///< over all ranks
  int64_t transfers = 0;        ///< values and gradients that went to another rank
  double peak_memory = 0;       ///< the highest of any rank

  std::vector<RankStats> ranks;
  /// timeline[rank][offset]: when that action of the rank's list ran. An overlap spans its parts.
  std::vector<std::vector<Interval>> timeline;
  /// memory[rank]: how much it held, starting with its weights at time 0.
  std::vector<std::vector<MemorySample>> memory;
  /// From an action that starts at 0 to one that ends last.
  std::vector<PathStep> critical_path;
  std::vector<OverCap> over_cap;  ///< at most one a rank; empty without a cap
};

/// Runs the schedule on a clock. A rank does its actions in order; a compute action waits for the
/// values it needs, a transfer goes on beside compute, and a value that stays on its rank arrives
/// at once. A wait for a send ends when the last byte has left. UNSHARD starts the gather of a
/// stage's weights, for which the stage's compute waits. Linear in the number of actions.
///
/// ScheduleError if the schedule cannot be executed (`verify` says why), ArgumentError for costs
/// that do not fit it.
Simulation simulate(const Schedule& schedule, const CostModel& costs, const StageGraph& graph);
/// For a chain of stages.
Simulation simulate(const Schedule& schedule, const CostModel& costs = {});

}  // namespace stagecraft
