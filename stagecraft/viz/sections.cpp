#include "stagecraft/viz/sections.h"

#include <algorithm>
#include <cmath>

#include <fmt/format.h>

#include "stagecraft/viz/markup.h"
#include "stagecraft/viz/page.h"
#include "stagecraft/viz/page_data.h"

namespace stagecraft {
namespace {

std::string section_table(const PageSection& section) {
  if (section.header.empty()) return {};
  std::string text = "<div class=\"scroll\"><table><thead><tr>";
  for (const std::string& title : section.header) {
    text += fmt::format("<th>{}</th>", viz::escape_xml(title));
  }
  text += "</tr></thead><tbody>\n";
  for (std::size_t i = 0; i < section.rows.size(); ++i) {
    text += i == section.marked_row ? "<tr class=\"this\">" : "<tr>";
    for (const std::string& cell : section.rows[i]) {
      text += fmt::format("<td>{}</td>", viz::escape_xml(cell));
    }
    text += "</tr>\n";
  }
  return text + "</tbody></table></div>\n";
}

/// The part of the plane that a chart shows, on a picture of 900 x 260.
struct ChartFrame {
  static constexpr double kLeft = 80;
  static constexpr double kTop = 12;
  static constexpr double kWidth = 800;
  static constexpr double kHeight = 200;
  double least_x = 0;
  double most_x = 1;
  double least_y = 0;
  double most_y = 1;

  double x(double value) const {
    return kLeft + kWidth * (value - least_x) / std::max(most_x - least_x, 1e-300);
  }
  double y(double value) const {
    return kTop + kHeight * (1 - (value - least_y) / std::max(most_y - least_y, 1e-300));
  }
};

std::string chart_line(const ChartFrame& frame, const std::vector<PageChart::Point>& points,
                       const char* style) {
  std::string path;
  for (const PageChart::Point& point : points) {
    path +=
        fmt::format("{}{:.2f},{:.2f}", path.empty() ? "" : " ", frame.x(point.x), frame.y(point.y));
  }
  return fmt::format("<polyline fill=\"none\" {} points=\"{}\"/>\n", style, path);
}

std::string section_chart(const PageChart& chart) {
  if (chart.points.size() < 2) return {};
  ChartFrame frame{chart.points.front().x, chart.points.back().x, chart.points.front().y,
                   chart.points.front().y};
  for (const auto* line : {&chart.points, &chart.floor}) {
    for (const PageChart::Point& point : *line) {
      frame.least_y = std::min(frame.least_y, point.y);
      frame.most_y = std::max(frame.most_y, point.y);
    }
  }
  std::string text = fmt::format(
      "<svg class=\"chart\" viewBox=\"0 0 900 260\" role=\"img\" aria-label=\"{} against {}\">\n",
      viz::escape_xml(chart.y_title), viz::escape_xml(chart.x_title));
  const auto ticks = [](double least, double most, auto&& draw) {
    if (!(most > least)) return draw(least);
    const double step = viz::tick_step(most - least, 6);
    for (double at = std::ceil(least / step) * step; at <= most + step * 1e-9; at += step) draw(at);
  };
  ticks(frame.least_y, frame.most_y, [&](double at) {
    text += fmt::format(
        "<line class=\"tick\" x1=\"80\" x2=\"880\" y1=\"{0:.2f}\" y2=\"{0:.2f}\"/><text x=\"74\" "
        "y=\"{1:.2f}\" text-anchor=\"end\">{2}</text>\n",
        frame.y(at), frame.y(at) + 4, viz::number_text(at));
  });
  ticks(frame.least_x, frame.most_x, [&](double at) {
    text += fmt::format("<text x=\"{:.2f}\" y=\"230\" text-anchor=\"middle\">{}</text>\n",
                        frame.x(at), viz::number_text(at));
  });
  text += fmt::format("<text x=\"480\" y=\"252\" text-anchor=\"middle\">{}</text>\n",
                      viz::escape_xml(chart.x_title));
  if (chart.floor.size() > 1) {
    text += chart_line(frame, chart.floor,
                       "stroke=\"var(--faint)\" stroke-width=\"1.5\" stroke-dasharray=\"5 4\"");
  }
  text += chart_line(frame, chart.points, "stroke=\"var(--accent)\" stroke-width=\"2\"");
  for (const PageChart::Point& point : chart.points) {
    text += fmt::format(
        "<circle cx=\"{:.2f}\" cy=\"{:.2f}\" r=\"3.5\" fill=\"var(--accent)\"><title>{}: {}, {}: "
        "{}</title></circle>\n",
        frame.x(point.x), frame.y(point.y), viz::escape_xml(chart.x_title),
        viz::number_text(point.x), viz::escape_xml(chart.y_title), viz::number_text(point.y));
  }
  text += "</svg>\n";
  text += fmt::format(
      "<div class=\"key\"><span><i class=\"line\" style=\"color:var(--accent)\"></i>"
      "{}</span>",
      viz::escape_xml(chart.y_title));
  if (chart.floor.size() > 1) {
    text += fmt::format("<span><i class=\"line dashed\" style=\"color:var(--faint)\"></i>{}</span>",
                        viz::escape_xml(chart.floor_title));
  }
  return text + "</div>\n";
}

}  // namespace

std::string draw_sections(const Schedule& schedule, const Simulation& simulation,
                          const StageGraph& graph, const HtmlOptions& options,
                          const std::vector<PageSection>& sections) {
  std::string text;
  for (const PageSection& section : sections) {
    text += fmt::format("<section><h2>{}</h2>\n", viz::escape_xml(section.title));
    if (!section.note.empty()) {
      text += fmt::format("<p class=\"note\">{}</p>\n", viz::escape_xml(section.note));
    }
    text += section_chart(section.chart) + section_table(section) + "</section>\n";
  }
  return viz::fill_page(
      viz::sections_template(),
      {
          {"title", viz::escape_xml(options.title.empty() ? "Pipeline plan" : options.title)},
          {"style", std::string(viz::page_style())},
          {"reportStyle", std::string(viz::report_style())},
          {"timeline", std::string(viz::timeline_markup())},
          {"sections", text},
          {"data", viz::page_data(schedule, simulation, graph, options)},
          {"script", viz::join(viz::page_scripts())},
      });
}

}  // namespace stagecraft
