#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/viz/html.h"

namespace stagecraft {

/// A line through points, with numbers at its axes.
struct PageChart {
  /// A point of the line.
  struct Point {
    double x = 0;
    double y = 0;
  };
  std::string x_title = {};
  std::string y_title = {};
  std::vector<Point> points = {};  ///< ascending x; fewer than two: no chart
  std::vector<Point> floor = {};   ///< a second, dashed line
  std::string floor_title = {};
};

/// A part of a page below the timeline.
struct PageSection {
  std::string title;
  std::string note = {};  ///< a paragraph
  std::vector<std::string> header = {};
  std::vector<std::vector<std::string>> rows = {};
  std::size_t marked_row = static_cast<std::size_t>(-1);  ///< in bold
  PageChart chart = {};
};

/// The page of draw_html with sections below the timeline. All texts are escaped. ArgumentError as
/// from draw_html.
std::string draw_sections(const Schedule& schedule, const Simulation& simulation,
                          const StageGraph& graph, const HtmlOptions& options,
                          const std::vector<PageSection>& sections);

}  // namespace stagecraft
