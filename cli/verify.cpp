// stagecraft verify: says whether a schedule can be executed and, if not, why.

#include "stagecraft/schedule/verify.h"

#include <cstdint>
#include <limits>
#include <optional>
#include <string>

#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/lowering_options.h"
#include "cli/output.h"
#include "cli/schedule_text.h"

namespace stagecraft::cli {
namespace {

std::string format_findings(const Verdict& verdict) {
  std::string text;
  for (const Finding& finding : verdict.findings) text += to_string(finding) + '\n';
  const std::size_t more = verdict.num_findings - verdict.findings.size();
  if (more > 0) text += fmt::format("and {} more; --max-findings shows them\n", more);
  return text;
}

}  // namespace

int run(const VerifyCommand& command) {
  VerifyOptions options;
  options.microbatches = command.microbatches;
  options.max_findings = command.max_findings;
  const std::optional<VerifyMode> mode = parse_mode(command.mode);
  const Schedule schedule = open_schedule(command.file);
  options.mode = mode.value_or(infer_mode(schedule));
  options.max_active_stages = command.max_active_stages;
  if (command.lookahead) {
    const int32_t most = command.max_active_stages.value_or(std::numeric_limits<int32_t>::max());
    options.unshard_lookahead =
        resolve_lookahead(parse_lookahead(*command.lookahead, schedule.num_ranks(), most),
                          schedule.num_ranks(), most);
  }
  const StageGraph graph = make_graph(command.graph, schedule.num_stages());
  const Verdict verdict = verify(schedule, graph, options);
  if (!verdict.ok()) {
    write_output("-", format_findings(verdict));
    return kBadSchedule;
  }
  write_output("-", fmt::format("good: {} schedule at level {}, {}, {}\n", to_string(options.mode),
                                to_string(schedule.level()), describe_shape(schedule),
                                format_count(schedule.num_actions(), "action")));
  return kGood;
}

}  // namespace stagecraft::cli
