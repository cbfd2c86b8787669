// stagecraft schedule: builds a schedule by name and prints it.

#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/schedule_text.h"

namespace stagecraft::cli {

int run(const ScheduleCommand& command) {
  Schedule schedule = build(command.source);
  if (command.lowering.lower) {
    const StageGraph graph = make_graph(command.graph, schedule.num_stages());
    schedule =
        prepare(std::move(schedule), graph, command.lowering, std::nullopt, command.source.what);
  }
  write_output(command.output, format_schedule(schedule, command.format));
  return kGood;
}

}  // namespace stagecraft::cli
