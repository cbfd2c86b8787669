#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// What load_schedule builds from and delivers.
struct LoadOptions {
  /// A schedule by name needs a shape; a file has its own.
  std::optional<ScheduleShape> shape = std::nullopt;
  /// The level of the result; without it, the level that the schedule has.
  std::optional<Level> level = std::nullopt;
  LowerOptions lower = {};  ///< how a compute schedule is lowered, and the mode for verification
};

/// The schedule of that name or in that file, verified for a chain of stages. A name goes first.
///
///   load_schedule("1F1B", {.shape = ScheduleShape{.ranks = 4, .microbatches = 8}});
///   load_schedule("mine.csv", {.level = Level::kLowered});
///
/// Throws what get_schedule and at_level throw.
Schedule load_schedule(const std::string& name_or_file, const LoadOptions& options = {});

/// The schedule of that name or in that file. Does not verify. Throws what ScheduleKind::build and
/// read_schedule throw; ArgumentError if `name_or_file` is neither, for a name without a shape,
/// and for a file with one.
Schedule get_schedule(const std::string& name_or_file,
                      const std::optional<ScheduleShape>& shape = std::nullopt);

/// Reads a schedule from text: JSON if the first character is '{', CSV otherwise. ParseError or
/// ArgumentError if the text is not a schedule with at least one action. Does not verify.
Schedule parse_schedule(std::string_view text);

/// The same for a file, or for standard input if the path is "-". Error if the file cannot be
/// read; ScheduleError, which begins with the file's name, if its text is not a schedule.
Schedule read_schedule(const std::string& path);

/// The schedule at that level (without one, at its own), verified for a stage graph. A compute
/// schedule is lowered as `options` say; options.mode says what it has to be complete for.
/// ScheduleError if the schedule cannot be executed, ArgumentError if kCompute is asked of a
/// lowered schedule.
Schedule at_level(Schedule schedule, std::optional<Level> level, const StageGraph& graph,
                  const LowerOptions& options = {});

}  // namespace stagecraft
