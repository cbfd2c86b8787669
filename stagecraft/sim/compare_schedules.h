#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// A schedule that was run.
struct ComparedSchedule {
  std::string name;
  int32_t stages_per_rank = 1;
  Simulation result;  ///< without timeline, memory samples and critical path
};

/// A schedule that does not support the shape, and the reason.
struct UnfitSchedule {
  std::string name;
  int32_t stages_per_rank = 1;
  std::string reason;
};

/// All schedules of a comparison.
struct ScheduleComparison {
  std::vector<ComparedSchedule> schedules = {};  ///< the fastest first
  std::vector<UnfitSchedule> unfit = {};
};

/// The costs of one stage, from costs that are given for a rank's whole part of the model, which is
/// split into `parts` stages. ArgumentError unless they are the same for all stages and
/// microbatches.
CostModel divide_costs(CostModel costs, int32_t parts);

/// Runs a schedule of the comparison. ScheduleError for one that does not fit.
using RunSchedule = std::function<Simulation(std::string_view name, const Schedule& schedule,
                                             int32_t stages_per_rank)>;

/// Builds and runs every schedule that trains, for the ranks and microbatches of the shape: with
/// its default number of stages a rank and, if given, with `shape.stages_per_rank`. A schedule that
/// cannot be built, or for which `run` throws ScheduleError, is unfit, unless it fits with the
/// other number of stages. Other exceptions of `run` are passed on.
ScheduleComparison compare_schedules(const ScheduleShape& shape, const RunSchedule& run);

}  // namespace stagecraft
