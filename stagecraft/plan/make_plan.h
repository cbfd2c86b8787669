#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/plan/bound.h"
#include "stagecraft/plan/evaluate_schedule.h"
#include "stagecraft/plan/memory_need.h"
#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/plan/split_bound.h"
#include "stagecraft/plan/split_search.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Passed to PlanOptions::progress when a better plan was found.
struct PlanProgress {
  double value = 0;  ///< of the objective
  double bound = 0;  ///< for the plan's stages
  double seconds = 0;
  std::string_view schedule;
};

/// Options of make_plan.
struct PlanOptions {
  std::chrono::nanoseconds time_limit = std::chrono::seconds(5);
  /// Rounds of each search for a schedule, instead of a time. The plan then depends on the problem
  /// and the seed alone.
  std::optional<int64_t> rounds = std::nullopt;
  uint64_t seed = 1;
  SearchSpace space = {};
  Objective objective = Objective::kStep;
  /// Whether microbatches of different sizes may run in a different order. This changes the order
  /// of sums.
  bool reorder = false;
  /// A built-in schedule is preferred to a synthesised one that is better by less than this share.
  double prefer_built_in = 0.005;
  std::function<void(const PlanProgress&)> progress = {};
  /// The search ends soon after it becomes true, with the best plan so far.
  const std::atomic<bool>* cancel = nullptr;
};

/// One row of a plan's table: a way to run the model, with its time and memory.
struct PlanRow {
  PlanChoice choice = {};
  std::string schedule = {};  ///< "synthesised" or the name of a built-in schedule
  std::string split = {};     ///< "" for the best one, "equal layers", "split 2"
  Evaluation result = {};
  double value = 0;  ///< of the objective
  Bound bound = {};  ///< for these stages
  bool built_in = false;
  /// If parameters are sharded: how many stages each rank unshards ahead.
  std::vector<int32_t> lookahead = {};
};

/// A schedule that does not fit, and why.
struct UnfitRow {
  std::string schedule;
  int32_t stages_per_rank = 1;
  std::string reason;
};

/// How a model is to be run, and the bounds to compare with.
struct Plan {
  PlanProblem problem;
  Objective objective = Objective::kStep;
  PlanRow best;
  /// At level kCompute; with UNSHARD and RESHARD if parameters are sharded.
  Schedule schedule;
  /// A bound for all splits of this model for these ranks.
  AnySplitBound any_split;
  std::vector<PlanRow> rows = {};  ///< the best first; the chosen one is among them
  std::vector<UnfitRow> unfit = {};
  uint64_t seed = 1;
  double seconds = 0;
  bool interrupted = false;  ///< `cancel` ended the search

  /// The distance of the plan from the bound for its stages, as a share of the bound.
  double gap() const { return best.bound.value > 0 ? best.value / best.bound.value - 1 : 0; }
  double any_split_gap() const {
    return any_split.value > 0 ? best.value / any_split.value - 1 : 0;
  }
  /// The first layer of each stage except stage 0, by name or number.
  std::vector<std::string> boundary_names() const;
};

/// Looks for the best plan within the time limit: split, placement, recompute, and the order of the
/// actions. Every built-in schedule is a candidate. The plan's schedule was verified and simulated,
/// and no rank is above its memory.
///
/// If parameters are sharded, orders are searched without gathers, and compared with gathers. If
/// memory is limited, fewer active stages are tried, too. The lookahead of the plan is the smallest
/// that costs no time.
///
/// Ties are broken by memory, then by transfers, then by fewer stages a rank. DoesNotFit when no
/// candidate fits; ArgumentError for a bad problem, for a space without a placement or number of
/// stages, and for more stages than layers.
Plan make_plan(const PlanProblem& problem, const PlanOptions& options = {});

/// Looks for the best order for given stages: each layer of the problem is a stage, and the
/// placement is loop or v. Throws as make_plan.
Plan plan_schedule_only(const PlanProblem& problem, const PlanOptions& options = {});

/// A point of the curve of time against memory.
struct CurvePoint {
  double memory = 0;  ///< of each rank; infinite: unlimited
  double value = 0;
  double bound = 0;
  std::string schedule = {};
  int32_t stages_per_rank = 1;
  int32_t recomputed = 0;  ///< stages
};

/// Plans for several amounts of memory, ascending, from the least that fits to the amount beyond
/// which nothing is gained. Each gets an equal share of the time limit. All ranks get the same
/// memory.
std::vector<CurvePoint> memory_curve(const PlanProblem& problem, const PlanOptions& options,
                                     std::size_t points = 8);

}  // namespace stagecraft
