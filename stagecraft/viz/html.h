#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// The texts around the drawing of draw_html, and how the drawing is made.
struct HtmlOptions {
  std::string title = {};     ///< heading and name of the page
  std::string subtitle = {};  ///< a line below it; without it, the shape of the schedule
  /// The plan: a second simulation of the schedule, for example beside a recording. It is drawn
  /// thin and pale under each lane, on the same time axis, and shown with the times of an action.
  /// Must outlive the call.
  const Simulation* plan = nullptr;
  /// Times are microseconds and memory is bytes, as in recordings: "1.25 ms", "3.5 MiB".
  bool real_units = false;
};

/// A page for a browser, complete in one file that loads nothing: zoom, pan, what each action waits
/// for and which actions wait for it, memory of each rank under its lane, the critical path. About
/// ten bytes an action if costs are whole numbers.
///
/// `graph` defines which stage waits for which. ArgumentError unless `simulation` and the plan are
/// of `schedule`.
std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const StageGraph& graph, const HtmlOptions& options = {});
/// For a chain of stages.
std::string draw_html(const Schedule& schedule, const Simulation& simulation,
                      const HtmlOptions& options = {});

}  // namespace stagecraft
