#include "stagecraft/schedule/load.h"

#include <cstddef>
#include <filesystem>
#include <system_error>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/read_file.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

bool is_there(const std::string& path) {
  std::error_code ignored;
  return path == "-" || std::filesystem::exists(path, ignored);
}

}  // namespace

Schedule load_schedule(const std::string& name_or_file, const LoadOptions& options) {
  Schedule schedule = get_schedule(name_or_file, options.shape);
  const StageGraph chain = StageGraph::chain(schedule.num_stages());
  return at_level(std::move(schedule), options.level, chain, options.lower);
}

Schedule get_schedule(const std::string& name_or_file, const std::optional<ScheduleShape>& shape) {
  if (const ScheduleKind* const kind = find_schedule_kind(name_or_file)) {
    require<ArgumentError>(shape.has_value(), "{} needs ranks and microbatches", kind->name);
    return kind->build(*shape);
  }
  require<ArgumentError>(is_there(name_or_file),
                         "{} is neither a file nor a schedule; the schedules are {}",
                         quote(name_or_file), list_schedule_names());
  require<ArgumentError>(!shape, "{} is a file, which has a shape of its own", name_or_file);
  return read_schedule(name_or_file);
}

Schedule parse_schedule(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  const bool is_json = first != std::string_view::npos && text[first] == '{';
  Schedule schedule = is_json ? parse_json(text) : parse_csv(text);
  require<ArgumentError>(schedule.num_stages() > 0, "the schedule has no action");
  return schedule;
}

Schedule read_schedule(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return parse_schedule(text);
  } catch (const Error& error) {
    throw ScheduleError(fmt::format("{}: {}", path == "-" ? "standard input" : path, error.what()),
                        {});
  }
}

Schedule at_level(Schedule schedule, std::optional<Level> level, const StageGraph& graph,
                  const LowerOptions& options) {
  if (level.value_or(schedule.level()) == schedule.level()) {
    verify_or_throw(schedule, graph, "the schedule cannot be run",
                    {.mode = options.mode.value_or(infer_mode(schedule))});
    return schedule;
  }
  require_level(schedule, Level::kCompute, "at_level");
  return lower(schedule, graph, options);
}

}  // namespace stagecraft
