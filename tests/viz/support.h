#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft::viz {

/// A title that no drawing may take for anything but text.
inline constexpr std::string_view kHostile = "</script><b>&\"'<!-- ]]>";

struct Case {
  Schedule schedule;
  Simulation simulation;
};

inline Case make_case(std::string_view name, int32_t ranks, int32_t microbatches,
                      const CostModel& costs = {}) {
  Schedule schedule = build_schedule(name, {.ranks = ranks, .microbatches = microbatches});
  Simulation simulation = simulate(schedule, costs);
  return {std::move(schedule), std::move(simulation)};
}

/// Two ranks and two microbatches, with waits for sends and reductions. A value takes 2 to leave
/// its rank. Rank 0 waits for its first send from 2 to 3, rank 1 for its last one from 9 to 11.
inline Case waiting_case() {
  const CostModel costs = parse_costs("BYTES=2,BW=1");
  const Schedule compute = build_schedule("1F1B", {.ranks = 2, .microbatches = 2});
  Schedule schedule = lower(compute, {.target = LowerTarget::kTorch215, .max_sends = 1});
  Simulation simulation = simulate(schedule, costs);
  return {std::move(schedule), std::move(simulation)};
}

/// Two ranks, no stage, nothing to do.
inline Case empty_case() {
  Simulation simulation;
  simulation.timeline.resize(2);
  return {Schedule(Level::kCompute, Placement::of({}, 2), {{}, {}}), simulation};
}

/// Actions that take no time at all.
inline Case instant_case() {
  CostModel costs;
  costs.stage.forward = 0;
  costs.stage.backward_input = 0;
  costs.stage.backward_weight = 0;
  return make_case("1F1B", 2, 2, costs);
}

/// A step that took longer than planned here and there, as a recording of one would look.
inline Simulation uneven_run(const Schedule& schedule, const CostModel& plan = {}) {
  CostModel costs = plan;
  for (int32_t stage = 0; stage < schedule.num_stages(); ++stage) {
    for (int32_t m = 0; m < schedule.num_microbatches(); ++m) {
      StageCost cost = plan.stage;
      cost.forward *= 1 + 0.125 * ((stage * 5 + m * 3) % 4);
      cost.backward_input *= 1 + 0.125 * ((stage * 3 + m * 7) % 3);
      costs.microbatches.push_back({StageId(stage), MicrobatchId(m), cost});
    }
  }
  costs.link.latency += 0.125 * plan.stage.forward;
  return simulate(schedule, costs);
}

/// The same run when it fails at `time`: what would have started then or later did not run.
inline Simulation failed_run(Simulation run, double time) {
  for (std::vector<Interval>& rank : run.timeline) {
    for (Interval& interval : rank) {
      if (interval.start >= time) interval = Interval::not_run();
    }
  }
  return run;
}

inline std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace stagecraft::viz
