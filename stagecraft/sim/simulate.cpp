#include "stagecraft/sim/simulate.h"

#include <algorithm>
#include <cmath>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/list_runner.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/clock.h"
#include "stagecraft/sim/critical_path.h"

namespace stagecraft {
namespace {

[[noreturn]] void refuse(const Schedule& schedule, const StageGraph& graph) {
  verify_or_throw(schedule, graph, "simulate", {.mode = VerifyMode::kPartial});
  throw ScheduleError("simulate: the schedule cannot be executed", {});
}

}  // namespace

Simulation simulate(const Schedule& schedule, const CostModel& costs, const StageGraph& graph) {
  check_costs(costs, schedule.num_ranks(), schedule.num_stages(), schedule.num_microbatches());
  require<ArgumentError>(graph.num_stages() == std::max(schedule.num_stages(), 1),
                         "the stage graph has {} stages, but the schedule has {}",
                         graph.num_stages(), schedule.num_stages());
  ActionIndex index(schedule);
  if (schedule.num_stages() == 0 || !index.add_all(schedule)) refuse(schedule, graph);
  // With a rendezvous the time of a send depends on its receives, so these are executed first.
  const Needs needs(schedule, graph,
                    costs.rendezvous ? Needs::Blocks::kSends : Needs::Blocks::kNothing);
  ListRunner runner(schedule, index, needs);
  Clock clock(schedule, graph, costs, index);
  const bool ran = runner.run([&](std::size_t rank, std::size_t offset, std::size_t length) {
    clock.execute(rank, offset, length);
  });
  if (!ran) refuse(schedule, graph);
  Simulation simulation = clock.finish();
  require<ArgumentError>(
      std::isfinite(simulation.makespan) && std::isfinite(simulation.peak_memory),
      "the costs add up to more than a number can hold: makespan {}, peak memory {}",
      simulation.makespan, simulation.peak_memory);
  simulation.critical_path = trace_critical_path(schedule, index, clock.transfers(), simulation);
  return simulation;
}

Simulation simulate(const Schedule& schedule, const CostModel& costs) {
  return simulate(schedule, costs, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
