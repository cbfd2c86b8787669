#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// What draw_html writes around the drawing.
struct HtmlOptions {
  std::string title = {};     ///< heading and name of the page
  std::string subtitle = {};  ///< a line below it; without it, the shape of the schedule
  /// What was planned, another simulation of the schedule (of a recording, say): thin and pale
  /// under each lane, on the same time axis, and told beside the times of an action. Must outlive
  /// the call.
  const Simulation* plan = nullptr;
  /// Times are microseconds and memory is bytes, as in recordings: "1.25 ms", "3.5 MiB".
  bool real_units = false;
};

/// A page to look at in a browser, complete in one file that loads nothing: zoom, pan, what each
/// action waits for and who waits for it, memory of each rank under its lane, the critical path.
/// About ten bytes an action where costs are whole numbers.
///
/// `graph` says who waits for whom. ArgumentError unless `simulation` and the plan
/// are of `schedule`.
std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const StageGraph& graph, const HtmlOptions& options = {});
/// For a chain of stages.
std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const HtmlOptions& options = {});

}  // namespace stagecraft
