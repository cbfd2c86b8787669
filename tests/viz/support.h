#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "stagecraft/schedule/builders/builders.h"
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

inline std::size_t count(std::string_view text, std::string_view word) {
  std::size_t found = 0;
  for (std::size_t at = text.find(word); at != std::string_view::npos;
       at = text.find(word, at + 1)) {
    ++found;
  }
  return found;
}

}  // namespace stagecraft::viz
