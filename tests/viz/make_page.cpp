// Writes one drawing to standard output, for tests that look at it from outside:
//
//   viz_make_page html|svg|trace|terminal SCHEDULE RANKS MICROBATCHES [TITLE [VARIANT]]
//
// VARIANT: lowered, costs, plan (a run beside what was planned) or failed (one that ended half
// way).

#include <cstdlib>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>

#include "stagecraft/base/error.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/sim/simulate.h"
#include "stagecraft/viz/html.h"
#include "stagecraft/viz/svg.h"
#include "stagecraft/viz/terminal.h"
#include "stagecraft/viz/trace.h"
#include "tests/viz/support.h"

namespace stagecraft {
namespace {

std::string make(std::string_view format, std::string_view name, const ScheduleShape& shape,
                 const std::string& title, std::string_view variant) {
  Schedule schedule = build_schedule(name, shape);
  if (variant == "lowered") schedule = lower(schedule);
  CostModel costs;
  if (variant == "costs") costs = parse_costs("F=18522,I=18086,W=9337,C=601");
  Simulation simulation = simulate(schedule, costs);
  const Simulation planned = simulation;
  const Simulation* plan = nullptr;
  if (variant == "plan" || variant == "failed") {
    plan = &planned;
    simulation = viz::uneven_run(schedule);
    simulation.memory.assign(simulation.ranks.size(), {});  // a recording has none
    simulation.critical_path.clear();
    if (variant == "failed") simulation = viz::failed_run(simulation, simulation.makespan / 2);
  }
  if (format == "html") {
    return draw_html(schedule, simulation, HtmlOptions{.title = title, .plan = plan});
  }
  if (format == "svg") {
    return draw_svg(schedule, simulation,
                    SvgOptions{.title = title,
                               .memory = variant == "costs",
                               .transfers = variant == "lowered" || variant == "failed",
                               .plan = plan});
  }
  if (format == "trace") {
    return draw_trace(schedule, simulation, StageGraph::chain(schedule.num_stages()), "", plan);
  }
  if (format == "terminal") {
    return draw_terminal(schedule, simulation, TerminalOptions{.title = title, .plan = plan});
  }
  throw ArgumentError("the format is html, svg, trace or terminal");
}

}  // namespace
}  // namespace stagecraft

int main(int argc, char** argv) {
  try {
    if (argc < 5) throw stagecraft::ArgumentError("expected FORMAT SCHEDULE RANKS MICROBATCHES");
    std::cout << stagecraft::make(argv[1], argv[2],
                                  {.ranks = std::atoi(argv[3]), .microbatches = std::atoi(argv[4])},
                                  argc > 5 ? argv[5] : argv[2], argc > 6 ? argv[6] : "");
    return 0;
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
