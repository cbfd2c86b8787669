#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "cli/commands.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"
#include "stagecraft/sim/cost_model.h"

namespace stagecraft::cli {

/// All of a file, or of standard input for "-". BadUsage when it cannot be read.
std::string read_all(const std::string& path);

/// A file's name for messages.
std::string name_of(const std::string& path);

/// Reads the schedule of a file, or of standard input for "-". BadUsage when it cannot be read,
/// ScheduleError, with the place, when its text is not a schedule. Does not verify.
Schedule open_schedule(const std::string& path);

/// Builds by name. BadUsage for an unknown name, no shape, and one that cannot be built.
Schedule build(const Source& source);

/// A schedule with its stage graph and a name for messages.
struct Loaded {
  std::string name;
  Schedule schedule;
  StageGraph graph;
};

/// Builds or reads what the source names and prepares it. BadUsage as `build`, for a file with a
/// shape beside it, and for what is neither a name nor a file; BadSchedule for a bad file.
Loaded load(const Source& source, const Lowering& lowering, const GraphChoice& graph);

/// BadUsage for text that is not a list of edges and for edges that do not fit.
StageGraph make_graph(const GraphChoice& choice, int32_t stages);

/// The chosen costs; without a choice those of a plan file that `source` names, or the default
/// ones. BadUsage when they are wrong.
CostModel make_costs(const CostChoice& choice, const std::string& source = {});

/// The mode of that name; nothing without a text. BadUsage for an unknown name.
std::optional<VerifyMode> parse_mode(const std::optional<std::string>& text);

/// The schedule, verified, and lowered if that was chosen. `name` begins messages. BadUsage for
/// options that the target of lowering does not have. BadSchedule when the schedule cannot be
/// executed, has to be lowered and is already, or is lowered for a torch that does not take it.
Schedule prepare(Schedule schedule, const StageGraph& graph, const Lowering& lowering,
                 std::optional<VerifyMode> mode, const std::string& name);

}  // namespace stagecraft::cli
