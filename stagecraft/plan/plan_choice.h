#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/plan/plan_problem.h"
#include "stagecraft/plan/schedule_problem.h"
#include "stagecraft/schedule/placement.h"

namespace stagecraft {

/// The pattern by which stages are placed on ranks.
enum class PlacementStyle : uint8_t { kLoop, kV };
/// "loop" or "v".
std::string_view to_string(PlacementStyle style);

/// What a planner decides, except for the order of the actions.
struct PlanChoice {
  int32_t stages_per_rank = 1;
  PlacementStyle placement = PlacementStyle::kLoop;
  /// The first layer of each stage, ascending; the first is 0.
  std::vector<int32_t> begins = {};
  std::vector<bool> recompute = {};  ///< by stage; such a stage has one B
  /// No stage has its backward split into I and W.
  bool whole_backward = false;
  /// If parameters are sharded: the most stages of a rank that are unsharded at the same time. 0:
  /// all of them.
  int32_t active_stages = 0;
  /// The rank at each place of a lap. Empty: 0, 1, 2, ... Set only if ranks differ.
  std::vector<int32_t> rank_order = {};

  int32_t num_stages() const { return static_cast<int32_t>(begins.size()); }
  bool recomputes() const;
  /// `active_stages` as a number of stages.
  int32_t most_active() const { return active_stages == 0 ? stages_per_rank : active_stages; }

  friend bool operator==(const PlanChoice&, const PlanChoice&) = default;
};

/// The numbers of active stages (PlanChoice::active_stages) that are worth trying: all stages of a
/// rank and, where memory is limited, fewer. {0} unless parameters are sharded.
std::vector<int32_t> active_to_try(const PlanProblem& problem, int32_t stages_per_rank);
/// The number of them that needs the least memory.
int32_t least_active(const PlanProblem& problem, int32_t stages_per_rank);

/// The rank of each stage. REQUIRES a choice for that number of ranks.
Placement place_stages(const PlanChoice& choice, int32_t ranks);

/// Stages made of layers, from sums that are computed once. The problem must outlive it.
class StageComposer {
 public:
  /// REQUIRES a checked problem.
  explicit StageComposer(const PlanProblem& problem, Objective objective = Objective::kStep);

  /// The stage of the layers [first, end). With `recompute`, F runs again before a whole B.
  StageLoad stage(int32_t first, int32_t end, bool recompute, bool whole_backward) const;
  /// Weights, gradients and optimizer state of the layers, on a rank that has them as one stage.
  double fixed_memory(int32_t first, int32_t end) const { return sum(fixed_, first, end); }
  /// The same memory in parts, as the problem's replicas divide it.
  HeldMemory held(int32_t first, int32_t end) const;
  /// Time to gather the weights of the layers.
  double gather(int32_t first, int32_t end) const { return sum(gather_, first, end); }
  /// The memory of each stage, by stage.
  IndexedVector<StageId, HeldMemory> held_by_stage(const PlanChoice& choice) const;
  /// The work of the layers for one microbatch of size 1. With `recompute`, it includes the second
  /// forward.
  double work(int32_t first, int32_t end, bool recompute = false) const;
  double forward(int32_t first, int32_t end) const { return sum(forward_, first, end); }
  double backward_input(int32_t first, int32_t end) const { return sum(input_, first, end); }

  /// The remaining problem when the choice is made: the order of the actions.
  ScheduleProblem compose(const PlanChoice& choice) const;

  const PlanProblem& problem() const { return *problem_; }
  int32_t num_layers() const { return static_cast<int32_t>(problem_->layers.size()); }
  /// The layer after the last one of a stage.
  int32_t end_of(const PlanChoice& choice, std::size_t stage) const {
    return stage + 1 < choice.begins.size() ? choice.begins[stage + 1] : num_layers();
  }
  Objective objective() const { return objective_; }
  /// The sum of the sizes of all microbatches.
  double total_size() const { return total_size_; }
  double smallest_size() const { return smallest_size_; }
  double largest_size() const { return largest_size_; }

 private:
  using Sums = std::vector<double>;
  static double sum(const Sums& sums, int32_t first, int32_t end) {
    return sums[static_cast<std::size_t>(end)] - sums[static_cast<std::size_t>(first)];
  }

  void limit_sharded(const PlanChoice& choice, ScheduleProblem& problem) const;

  const PlanProblem* problem_;
  Objective objective_;
  // Entry l: the sum over the layers before l.
  Sums forward_;
  Sums input_;
  Sums weight_;
  Sums full_;
  Sums recompute_;
  Sums memory_forward_;
  Sums memory_weight_;
  Sums fixed_;
  // Sums for sharded parameters. Empty otherwise.
  Sums pieces_;
  Sums gathered_;
  Sums gradients_;
  Sums gather_;
  double total_size_ = 0;
  double smallest_size_ = 1;
  double largest_size_ = 1;
};

}  // namespace stagecraft
