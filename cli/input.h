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

/// The whole text of a file, or of standard input for "-". BadUsage when it cannot be read.
std::string read_all(const std::string& path);

/// A file's name for messages.
std::string name_of(const std::string& path);

/// Reads the schedule of a file, or of standard input for "-". BadUsage when it cannot be read,
/// ScheduleError, with the place, when its text is not a schedule. Does not verify.
Schedule open_schedule(const std::string& path);

/// Builds a schedule by name. BadUsage for an unknown name, and for a shape that is missing or
/// cannot be built.
Schedule build(const Source& source);

/// A schedule with its stage graph and a name for messages.
struct Loaded {
  std::string name;
  Schedule schedule;
  StageGraph graph;
};

/// Builds or reads the schedule that the source names, and prepares it. BadUsage as `build`, for a
/// file together with a shape, and for a source that is neither a name nor a file. BadSchedule for
/// a bad file.
Loaded load(const Source& source, const Lowering& lowering, const GraphChoice& graph);

/// BadUsage for text that is not a list of edges and for edges that do not fit.
StageGraph make_graph(const GraphChoice& choice, int32_t stages);

/// The chosen costs. Without a choice, the costs of the plan file that `source` names, or the
/// default costs. BadUsage if the costs are wrong.
CostModel make_costs(const CostChoice& choice, const std::string& source = {});

/// The mode with that name. Nothing without a text. BadUsage for an unknown name.
std::optional<VerifyMode> parse_mode(const std::optional<std::string>& text);

/// The schedule, verified, and lowered if that was chosen. Messages begin with `name`. BadUsage for
/// options that the target of lowering lacks. BadSchedule if the schedule cannot be executed, if it
/// is to be lowered and is already lowered, or if the target torch refuses it.
Schedule prepare(Schedule schedule, const StageGraph& graph, const Lowering& lowering,
                 std::optional<VerifyMode> mode, const std::string& name);

}  // namespace stagecraft::cli
