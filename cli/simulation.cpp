#include "cli/simulation.h"

#include <string>

#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/output.h"
#include "stagecraft/base/assert.h"

namespace stagecraft::cli {

Simulation simulate(const Loaded& loaded, const CostModel& costs) {
  try {
    return stagecraft::simulate(loaded.schedule, costs, loaded.graph);
  } catch (const ArgumentError& error) {
    throw BadUsage(error.what());
  } catch (const ScheduleError& error) {
    throw BadSchedule(fmt::format("{}: {}", loaded.name, error.what()));
  }
}

UnitSteps simulate_unit_steps(const Loaded& loaded) {
  SC_ASSERT(loaded.schedule.level() == Level::kLowered);
  try {
    return stagecraft::simulate_unit_steps(loaded.schedule, loaded.graph);
  } catch (const Error& error) {
    throw BadSchedule(fmt::format("{}: {}", loaded.name, error.what()));
  }
}

void check_cap(const Loaded& loaded, const CostModel& costs, const Simulation& simulation) {
  if (simulation.over_cap.empty()) return;
  const OverCap& over = simulation.over_cap.front();
  const auto list = loaded.schedule.actions(over.rank);
  const std::string where = over.offset
                                ? fmt::format(" at {}", to_string(slot_at(list, *over.offset)))
                                : std::string(" of weights");
  throw BadSchedule(
      fmt::format("{}: over the memory cap of {} on {}; rank {} is the first, with {}"
                  "{}, time {}",
                  loaded.name, format_number(costs.memory_cap.value_or(0)),
                  format_count(static_cast<int64_t>(simulation.over_cap.size()), "rank"),
                  over.rank.value(), format_number(over.memory), where, format_number(over.time)));
}

}  // namespace stagecraft::cli
