// stagecraft draw: a picture of a schedule on a clock.

#include <algorithm>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>
#include <unistd.h>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/simulation.h"
#include "stagecraft/viz/html.h"
#include "stagecraft/viz/svg.h"
#include "stagecraft/viz/terminal.h"
#include "stagecraft/viz/trace.h"

namespace stagecraft::cli {
namespace {

constexpr int32_t kLeastColumns = 40;

std::string_view environment_text(const char* name) {
  const char* value = std::getenv(name);
  return value == nullptr ? std::string_view() : std::string_view(value);
}

std::string choose_format(const DrawCommand& command) {
  if (command.format) return *command.format;
  const std::string& output = command.output;
  if (output.ends_with(".svg")) return "svg";
  if (output.ends_with(".html") || output.ends_with(".htm")) return "html";
  if (output.ends_with(".json")) return "trace";
  return "terminal";
}

// https://no-color.org: set and not empty means none, unless the command line asks for colour.
TerminalColor choose_color(const DrawCommand& command) {
  const bool terminal = command.output == "-" && isatty(STDOUT_FILENO) == 1;
  const bool wanted =
      terminal && environment_text("NO_COLOR").empty() && environment_text("TERM") != "dumb";
  if (command.color == "never" || (command.color == "auto" && !wanted)) return TerminalColor::kNone;
  const std::string_view depth = environment_text("COLORTERM");
  return depth == "truecolor" || depth == "24bit" ? TerminalColor::kTrueColor : TerminalColor::k256;
}

int32_t columns_to_draw() {
  const std::optional<int32_t> columns = terminal_columns();
  return columns ? std::max(*columns, kLeastColumns) : TerminalOptions().width;
}

std::string draw_on_terminal(const DrawCommand& command, const Loaded& loaded,
                             const Simulation& simulation, const std::string& title) {
  TerminalOptions options;
  options.width = command.width.value_or(columns_to_draw());
  options.color = choose_color(command);
  options.title = title;
  return draw_terminal(loaded.schedule, simulation, options);
}

std::string draw_figure(const DrawCommand& command, const Loaded& loaded,
                        const Simulation& simulation, const std::string& title) {
  SvgOptions options;
  options.title = title;
  options.width = command.width.value_or(options.width);
  options.memory = command.memory;
  options.transfers = command.transfers;
  return draw_svg(loaded.schedule, simulation, loaded.graph, options);
}

std::string draw(const DrawCommand& command, const Loaded& loaded, const Simulation& simulation) {
  const std::string title = command.title.value_or(loaded.name);
  const std::string format = choose_format(command);
  if (format == "svg") return draw_figure(command, loaded, simulation, title);
  if (format == "trace") return draw_trace(loaded.schedule, simulation, loaded.graph, title);
  if (format == "html") {
    HtmlOptions options;
    options.title = title;
    return draw_html(loaded.schedule, simulation, loaded.graph, options);
  }
  return draw_on_terminal(command, loaded, simulation, title);
}

}  // namespace

int run(const DrawCommand& command) {
  const CostModel costs = make_costs(command.costs, command.source.what);
  const Loaded loaded = load(command.source, command.lowering, command.graph);
  const Simulation simulation = simulate(loaded, costs);
  std::string picture;
  try {
    picture = draw(command, loaded, simulation);
  } catch (const ArgumentError& error) {
    throw BadUsage(error.what());
  }
  write_output(command.output, picture);
  check_cap(loaded, costs, simulation);
  return kGood;
}

}  // namespace stagecraft::cli
