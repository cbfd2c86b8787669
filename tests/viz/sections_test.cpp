#include "stagecraft/viz/sections.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft {
namespace {

using testing::HasSubstr;
using testing::Not;

std::string page_with(const std::vector<PageSection>& sections) {
  const Schedule schedule = build_schedule("1F1B", {.ranks = 2, .microbatches = 3});
  HtmlOptions options;
  options.title = "A <plan>";
  return draw_sections(schedule, simulate(schedule), StageGraph::chain(2), options, sections);
}

TEST(Sections, HasTheTimelineAndEverySection) {
  PageSection table{.title = "Ways", .note = "Two & more."};
  table.header = {"schedule", "time"};
  table.rows = {{"1F1B", "12"}, {"<script>", "13"}};
  table.marked_row = 0;
  const std::string page = page_with({table, {.title = "Bounds", .note = "None."}});
  EXPECT_THAT(page, HasSubstr("<title>A &lt;plan&gt;</title>"));
  EXPECT_THAT(page, HasSubstr("<h2>Ways</h2>"));
  EXPECT_THAT(page, HasSubstr("Two &amp; more."));
  EXPECT_THAT(page, HasSubstr("<tr class=\"this\"><td>1F1B</td><td>12</td></tr>"));
  EXPECT_THAT(page, HasSubstr("<td>&lt;script&gt;</td>"));
  EXPECT_THAT(page, HasSubstr("<h2>Bounds</h2>"));
  EXPECT_THAT(page, HasSubstr("id=\"lanes\""));
  EXPECT_THAT(page, Not(HasSubstr("{{")));
}

TEST(Sections, DrawsALineThroughThePoints) {
  PageSection curve{.title = "Curve"};
  curve.chart = {.x_title = "memory",
                 .y_title = "time",
                 .points = {{10, 400}, {20, 200}, {40, 100}},
                 .floor = {{10, 100}, {40, 100}},
                 .floor_title = "bound"};
  const std::string page = page_with({curve});
  // The first point is at the top left of the frame, the last one at its bottom right.
  EXPECT_THAT(page, HasSubstr("points=\"80.00,12.00 346.67,145.33 880.00,212.00\""));
  EXPECT_THAT(page, HasSubstr("stroke-dasharray"));
  EXPECT_THAT(page, HasSubstr("<title>memory: 20, time: 200</title>"));
  curve.chart.points.resize(1);
  EXPECT_THAT(page_with({curve}), Not(HasSubstr("<polyline")));
}

}  // namespace
}  // namespace stagecraft
