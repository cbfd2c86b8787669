#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"

namespace stagecraft {

/// Options of draw_svg.
struct SvgOptions {
  std::string title = {};
  int32_t width = 960;  ///< of the figure, in pixels; 200 to 100000
  /// The height of a rank's bars, in pixels, at least 4. Without a value 26, and less for many
  /// ranks.
  std::optional<int32_t> lane_height = std::nullopt;
  bool memory = false;     ///< a curve of its memory under each lane
  bool transfers = false;  ///< lines for values that go to a different rank, unless too many
  bool summary = true;     ///< a line with makespan, bubble, peak memory and transfers
  bool background = true;  ///< white; otherwise transparent
  /// The plan: a second simulation of the schedule, for example beside a recording. It is drawn
  /// thin and pale under each lane, on the same time axis. Must outlive the call.
  const Simulation* plan = nullptr;
};

/// A figure for a paper: one lane a rank with a bar for each action, coloured by type and shaded by
/// stage, with its microbatch if there is room; the parts of an overlap one above the other; thin
/// bars for waits that take time; a time axis, and a legend of the types that occur. Where bars are
/// too narrow to be distinguished, the heights of the colours show how time divides among the
/// types. Fonts are generic, and nothing is loaded.
///
/// ArgumentError unless `simulation` and the plan are of `schedule`, and for a size below the
/// least.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const StageGraph& graph, const SvgOptions& options = {});
/// For a chain of stages.
std::string draw_svg(const Schedule& schedule, const Simulation& simulation,
                     const SvgOptions& options = {});

}  // namespace stagecraft
