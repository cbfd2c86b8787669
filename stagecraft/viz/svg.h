#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// What draw_svg draws.
struct SvgOptions {
  std::string title = {};
  int32_t width = 960;  ///< of the figure, in pixels; 200 to 100000
  /// Of a rank's bars, in pixels, at least 4; without it 26, and less for many ranks.
  std::optional<int32_t> lane_height = std::nullopt;
  bool memory = false;     ///< a curve of its memory under each lane
  bool transfers = false;  ///< lines for what goes to another rank; left out where there are many
  bool summary = true;     ///< a line with makespan, bubble, peak memory and transfers
  bool background = true;  ///< white; otherwise transparent
  /// What was planned, another simulation of the schedule (of a recording, say): thin and pale
  /// under each lane, on the same time axis. Must outlive the call.
  const Simulation* plan = nullptr;
};

/// A figure for a paper: one lane a rank with a bar for each action, coloured by type and shaded by
/// stage, with its microbatch where there is room; the parts of an overlap one above the other;
/// thin bars for waits that take time; a time axis and a legend of what occurs. Where bars are too
/// narrow to tell apart, the heights of the colours show how time divides among them. Generic
/// fonts, nothing to load.
///
/// ArgumentError unless `simulation` and the plan are of `schedule`, and for a size below the
/// least.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const StageGraph& graph, const SvgOptions& options = {});
/// For a chain of stages.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const SvgOptions& options = {});

}  // namespace stagecraft
