#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// A trace that ui.perfetto.dev and chrome://tracing open, one unit of time a microsecond. A
/// process is a rank, with a track for compute, a track for transfers and similar actions if the
/// schedule has them, and its memory as a counter. Arrows are values and gradients that go to a
/// different rank. `plan`, if any, is a second simulation of the schedule (the plan, if
/// `simulation` is a recording). It has a track of its own in each rank.
///
/// ArgumentError unless `simulation` and `plan` are of `schedule`.
std::string draw_trace(const Schedule& schedule, const Simulation& simulation,
                       const StageGraph& graph, const std::string& title = "",
                       const Simulation* plan = nullptr);
/// For a chain of stages.
std::string draw_trace(const Schedule& schedule, const Simulation& simulation);

}  // namespace stagecraft
