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

/// Reads a schedule, as JSON when its first character is '{', else as CSV. BadSchedule, with the
/// place, when it is none.
///
/// A CSV of several ranks without any transfer is taken for the compute level, whatever else is in
/// it.
Schedule read_schedule(const std::string& path);

/// Builds by name. BadUsage for an unknown name, no shape, and one that cannot be built.
Schedule build(const Source& source);

/// A schedule with its stage graph and a name for people.
struct Loaded {
  std::string name;
  Schedule schedule;
  StageGraph graph;
};

/// Builds or reads what the source names and lowers it if asked. BadUsage as `build`, for a file
/// with a shape beside it, and for what is neither a name nor a file; BadSchedule for a bad file.
Loaded load(const Source& source, const Lowering& lowering, const GraphChoice& graph);

/// BadUsage for text that is no list of edges and for edges that do not fit.
StageGraph make_graph(const GraphChoice& choice, int32_t stages);

/// The model's default when nothing was chosen. BadUsage when it is wrong.
CostModel make_costs(const CostChoice& choice);

/// Nothing for nothing. BadUsage for another word than a mode's.
std::optional<VerifyMode> parse_mode(const std::optional<std::string>& text);

/// Lowers, starting from the compute level. `name` begins messages. BadSchedule when there are
/// transfers already or the schedule is not good.
Schedule lower_schedule(const Schedule& schedule, const StageGraph& graph, const Lowering& lowering,
                        std::optional<VerifyMode> mode, const std::string& name);

}  // namespace stagecraft::cli
