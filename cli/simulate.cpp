// stagecraft simulate: how long a schedule takes, how much of it is idle, what memory it needs.

#include <utility>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/simulation.h"

namespace stagecraft::cli {
namespace {

int run_unit(const SimulateCommand& command, Loaded loaded) {
  if (loaded.schedule.level() == Level::kCompute) {
    Lowering lowering = command.lowering;
    lowering.lower = true;
    loaded.schedule = prepare(std::move(loaded.schedule), loaded.graph, lowering,
                              parse_mode(command.source.mode), loaded.name);
  }
  const UnitSteps steps = simulate_unit_steps(loaded);
  write_output("-", command.json
                        ? report_json(loaded.name, loaded.schedule, steps, command.timeline)
                        : report_text(loaded.name, loaded.schedule, steps));
  return kGood;
}

}  // namespace

int run(const SimulateCommand& command) {
  const CostModel costs = make_costs(command.costs, command.source.what);
  Loaded loaded = load(command.source, command.lowering, command.graph);
  if (command.unit) return run_unit(command, std::move(loaded));
  const Simulation simulation = simulate(loaded, costs);
  write_output("-", command.json
                        ? report_json(loaded.name, loaded.schedule, simulation, command.timeline)
                        : report_text(loaded.name, loaded.schedule, simulation));
  check_cap(loaded, costs, simulation);
  return kGood;
}

}  // namespace stagecraft::cli
