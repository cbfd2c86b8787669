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

/// One that cannot be, and why.
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

/// Runs a schedule of the comparison. ScheduleError for one that does not fit.
using RunSchedule = std::function<Simulation(std::string_view name, const Schedule& schedule,
                                             int32_t stages_per_rank)>;

/// Builds every schedule that trains for so many ranks and microbatches, with as many stages a rank
/// as suit it and, where given, with `shape.stages_per_rank` as well, and runs each. What cannot be
/// built or run is unfit, unless the same schedule fits with another number of stages. What else
/// `run` throws is thrown.
ScheduleComparison compare_schedules(const ScheduleShape& shape, const RunSchedule& run);

}  // namespace stagecraft
