// stagecraft lower: makes a lowered schedule of a file.

#include <optional>
#include <utility>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/schedule_text.h"

namespace stagecraft::cli {

int run(const LowerCommand& command) {
  const std::optional<VerifyMode> mode = parse_mode(command.mode);
  Schedule schedule = open_schedule(command.file);
  const StageGraph graph = make_graph(command.graph, schedule.num_stages());
  const Schedule lowered =
      prepare(std::move(schedule), graph, command.lowering, mode, name_of(command.file));
  write_output(command.output, format_schedule(lowered, command.format));
  return kGood;
}

}  // namespace stagecraft::cli
