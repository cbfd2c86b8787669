// stagecraft plan: the best pipeline for a model, ranks and memory, and how good it is.

#include <algorithm>
#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/plan_input.h"
#include "cli/plan_output.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/plan/plan_text.h"

namespace stagecraft::cli {
namespace {

/// The curve of time against memory. It needs several plans: all points for a table, or a few
/// points in a part of the time for a sentence.
std::vector<CurvePoint> make_curve(const PlanCommand& command, const PlanProblem& problem,
                                   PlanOptions options) {
  const bool limited = std::any_of(problem.ranks.begin(), problem.ranks.end(),
                                   [](const PlanRank& rank) { return rank.memory.has_value(); });
  if (command.schedule_only || (!command.curve && !limited)) return {};
  if (options.cancel->load()) return {};
  if (!command.curve) options.time_limit /= 4;
  if (options.rounds) options.rounds = std::max<int64_t>(1, *options.rounds / 8);
  return memory_curve(problem, options, command.curve ? 8 : 4);
}

std::string plan_output(const PlanCommand& command, const Plan& plan,
                        const std::vector<CurvePoint>& curve) {
  std::string text =
      plan_headline(plan) + '\n' + plan_table(plan, static_cast<std::size_t>(command.top));
  const std::string unfit = plan_unfit(plan);
  if (!unfit.empty()) text += '\n' + unfit;
  text += '\n' + plan_stages(plan) + '\n' + draw_plan(plan, command.width) + '\n' +
          plan_bounds(plan) + curve_sentence(plan, curve);
  if (command.curve) text += '\n' + curve_table(plan, curve);
  return text;
}

constexpr const char* kExampleCosts = R"({"C": 0.05, "BYTES": 10, "INPUT_BYTES": 1,
 "layers": [{"name": "embedding", "F": 0.5, "I": 0.1, "W": 1.5, "MF": 20, "MW": 0,
             "WEIGHTS": 300, "GRADS": 150, "STATE": 300, "G": 3},
            {"repeat": 48, "F": 10, "I": 10, "W": 7, "MF": 100, "MW": 43,
             "WEIGHTS": 200, "GRADS": 100, "STATE": 200, "G": 2},
            {"name": "head", "F": 30, "I": 32, "W": 28, "MF": 220, "MW": 90,
             "WEIGHTS": 300, "GRADS": 150, "STATE": 300, "G": 3}]}
)";

}  // namespace

int run(const PlanCommand& command) {
  if (command.example) {
    write_output("-", kExampleCosts);
    return kGood;
  }
  if (command.costs.empty()) throw BadUsage("plan needs a cost file; plan --example prints one");
  if (command.microbatches == 0) throw BadUsage("plan needs --microbatches");
  const PlanProblem problem = make_problem(command);
  PlanOptions options = make_plan_options(command.search);
  const Interrupt interrupt;
  options.cancel = interrupt.flag();
  std::optional<Plan> plan;
  try {
    plan =
        command.schedule_only ? plan_schedule_only(problem, options) : make_plan(problem, options);
  } catch (const DoesNotFit& error) {
    for (const std::string& line : error.lines()) print_error(line);
    return kBadSchedule;
  } catch (const ArgumentError& error) {
    throw BadUsage(error.what());
  }
  const std::vector<CurvePoint> curve = make_curve(command, problem, options);
  if (command.output) write_output(*command.output, to_plan_file(to_saved(*plan)));
  if (command.report) write_output(*command.report, plan_page(*plan, curve));
  if (command.output != "-" && command.report != "-") {
    write_output("-", command.json ? plan_json(*plan, curve) : plan_output(command, *plan, curve));
  }
  return kGood;
}

}  // namespace stagecraft::cli
