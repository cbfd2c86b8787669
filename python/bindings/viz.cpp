#include <algorithm>
#include <optional>
#include <string>

#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include "python/bindings/simulated.h"
#include "stagecraft/base/error.h"
#include "stagecraft/viz/html.h"
#include "stagecraft/viz/svg.h"
#include "stagecraft/viz/terminal.h"
#include "stagecraft/viz/trace.h"

namespace stagecraft::python {
namespace {

TerminalColor color_from(const std::string& name) {
  if (name == "none") return TerminalColor::kNone;
  if (name == "256") return TerminalColor::k256;
  if (name == "true") return TerminalColor::kTrueColor;
  throw ArgumentError("color: expected none, 256 or true, got " + name);
}

}  // namespace

void bind_viz(py::module_& module) {
  module.def(
      "draw_svg",
      [](const Simulated& run, const std::string& title, int32_t width, bool memory, bool transfers,
         bool summary, bool background) {
        SvgOptions options;
        options.title = title;
        options.width = width;
        options.memory = memory;
        options.transfers = transfers;
        options.summary = summary;
        options.background = background;
        return draw_svg(run.schedule, run.result, options);
      },
      py::arg("run"), py::arg("title") = "", py::arg("width") = 960, py::arg("memory") = false,
      py::arg("transfers") = false, py::arg("summary") = true, py::arg("background") = true);
  module.def(
      "draw_html",
      [](const Simulated& run, const std::string& title, const std::string& subtitle) {
        HtmlOptions options;
        options.title = title;
        options.subtitle = subtitle;
        return draw_html(run.schedule, run.result, options);
      },
      py::arg("run"), py::arg("title") = "", py::arg("subtitle") = "");
  module.def(
      "draw_terminal",
      [](const Simulated& run, int32_t width, const std::string& color, const std::string& title) {
        TerminalOptions options;
        options.width = width;
        options.color = color_from(color);
        options.title = title;
        return draw_terminal(run.schedule, run.result, options);
      },
      py::arg("run"), py::arg("width") = 100, py::arg("color") = "none", py::arg("title") = "");
  module.def(
      "draw_trace",
      [](const Simulated& run, const std::string& title) {
        const StageGraph graph = StageGraph::chain(std::max(run.schedule.num_stages(), 1));
        return draw_trace(run.schedule, run.result, graph, title);
      },
      py::arg("run"), py::arg("title") = "");
}

}  // namespace stagecraft::python
