#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/plan/plan_choice.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// The time and memory of a schedule for the stages of a choice.
struct Evaluation {
  double makespan = 0;
  double span = 0;
  double bubble = 0;
  int64_t transfers = 0;
  double exposed_gather = 0;       ///< time that ranks wait for weights, all ranks together
  std::vector<double> peaks = {};  ///< by rank, weights and peaks of actions included
  /// The rank whose peak is nearest to its memory, or the largest without memory limits.
  int32_t fullest_rank = 0;
  bool fits = true;  ///< no peak is above its rank's memory

  double value(Objective objective) const {
    return objective == Objective::kStep ? makespan : span;
  }
};

/// The costs of the choice's stages for `simulate`: I and W for stages whose backward is split, B
/// for all stages, and gathers if parameters are sharded. The memory that a rank holds all the time
/// includes the most whole gradients that the schedule has at the same time.
CostModel choice_costs(const StageComposer& composer, const PlanChoice& choice,
                       const Schedule& schedule);

/// Simulates the schedule, whose backward may be split or not, and follows the memory of each rank.
/// ScheduleError for a schedule that cannot be executed, for one that splits the backward of a
/// stage that recomputes and, if parameters are sharded, for one without UNSHARD.
Evaluation evaluate_schedule(const StageComposer& composer, const PlanChoice& choice,
                             const Schedule& schedule);

/// The simulation alone.
Simulation simulate_choice(const StageComposer& composer, const PlanChoice& choice,
                           const Schedule& schedule);

}  // namespace stagecraft
