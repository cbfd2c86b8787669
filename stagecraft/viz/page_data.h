#pragma once

#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/viz/html.h"

namespace stagecraft::viz {

/// The data of a page's timeline, as the JSON that page/data.js reads. ArgumentError unless
/// `simulation` and the plan are of `schedule`.
std::string page_data(const Schedule& schedule, const Simulation& simulation,
                      const StageGraph& graph, const HtmlOptions& options);

}  // namespace stagecraft::viz
