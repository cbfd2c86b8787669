#include "cli/schedule_text.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/output.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/table.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft::cli {
namespace {

bool has_idle_slots(const Schedule& schedule) {
  return std::any_of(schedule.lists().begin(), schedule.lists().end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(), [](Action action) { return action.is_idle(); });
  });
}

// Adds idle slots, so that the actions in one line of the table run at the same time.
Schedule with_idle_slots(const Schedule& schedule) {
  CostModel costs;
  costs.stage.backward = 1;
  costs.overlap = 1;
  const StageGraph chain = StageGraph::chain(schedule.num_stages());
  const Simulation run = simulate(schedule, costs, chain);
  std::vector<ActionList> lists;
  for (std::size_t r = 0; r < run.timeline.size(); ++r) {
    ActionList& list = lists.emplace_back();
    long steps = 0;
    for (const Slot& slot : schedule.slots(Rank(static_cast<int32_t>(r)))) {
      const long start = std::lround(run.timeline[r][slot.offset()].start);
      for (; steps < start; ++steps) list.emplace_back();
      list.insert(list.end(), slot.actions().begin(), slot.actions().end());
      ++steps;
    }
  }
  return {Level::kCompute, schedule.placement(), std::move(lists)};
}

}  // namespace

std::string format_schedule(const Schedule& schedule, std::string_view format) {
  if (format == "json") return to_json(schedule);
  if (format == "csv") return to_csv(schedule);
  if (schedule.level() == Level::kLowered || has_idle_slots(schedule)) return to_table(schedule);
  return to_table(with_idle_slots(schedule));
}

std::string describe_shape(const Schedule& schedule) {
  return fmt::format("{}, {}, {}", format_count(schedule.num_ranks(), "rank"),
                     format_count(schedule.num_stages(), "stage"),
                     format_microbatches(schedule.num_microbatches()));
}

std::string format_microbatches(int32_t count) {
  return fmt::format("{} microbatch{}", count, count == 1 ? "" : "es");
}

}  // namespace stagecraft::cli
