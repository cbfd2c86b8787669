#include "cli/input.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <memory>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/failure.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/csv.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/passes/lower.h"

namespace stagecraft::cli {
namespace {

[[noreturn]] void fail_to_read(const std::string& path, int error) {
  throw BadUsage(fmt::format("cannot read {}: {}", name_of(path), std::strerror(error)));
}

bool has_transfers(const Schedule& schedule) {
  return std::any_of(schedule.lists().begin(), schedule.lists().end(), [](const ActionList& list) {
    return std::any_of(list.begin(), list.end(),
                       [](Action action) { return is_transfer(action.type()); });
  });
}

Schedule at_compute_level(const Schedule& schedule) {
  return {Level::kCompute, schedule.placement(), schedule.lists()};
}

Schedule parse_schedule(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  if (first != std::string_view::npos && text[first] == '{') return parse_json(text);
  return parse_csv(text);
}

const ScheduleKind* find_kind(std::string_view name) {
  try {
    return &get_schedule_kind(name);
  } catch (const ArgumentError&) {
    return nullptr;
  }
}

Schedule read_source(const Source& source) {
  std::error_code ignored;
  if (source.what != "-" && !std::filesystem::exists(source.what, ignored)) {
    std::string names;
    for (const ScheduleKind& kind : schedule_kinds()) {
      names += fmt::format("{}{}", names.empty() ? "" : ", ", kind.name);
    }
    throw BadUsage(fmt::format("{} is neither a file nor a schedule; the schedules are {}",
                               quote(source.what), names));
  }
  if (source.ranks || source.microbatches || source.stages_per_rank) {
    throw BadUsage(fmt::format(
        "--ranks, --microbatches and --stages-per-rank are for a schedule by name; {} has its own",
        name_of(source.what)));
  }
  return read_schedule(source.what);
}

// Values of options are one line, so only the column says anything.
std::string without_line(const ParseError& error) {
  const std::string_view message = error.what();
  constexpr std::string_view kLine = "line 1, ";
  return std::string(message.substr(message.starts_with(kLine) ? kLine.size() : 0));
}

}  // namespace

std::string name_of(const std::string& path) {
  return path == "-" ? "standard input" : path;
}

std::string read_all(const std::string& path) {
  struct CloseFile {
    void operator()(std::FILE* file) const {
      if (file != stdin) std::fclose(file);
    }
  };
  const std::unique_ptr<std::FILE, CloseFile> file(path == "-" ? stdin
                                                               : std::fopen(path.c_str(), "rb"));
  if (!file) fail_to_read(path, errno);
  std::string text;
  std::vector<char> buffer(1U << 16U);
  while (const std::size_t count = std::fread(buffer.data(), 1, buffer.size(), file.get())) {
    text.append(buffer.data(), count);
  }
  if (std::ferror(file.get()) != 0) fail_to_read(path, errno);
  return text;
}

Schedule read_schedule(const std::string& path) {
  const std::string text = read_all(path);
  try {
    Schedule schedule = parse_schedule(text);
    if (schedule.num_stages() == 0) throw ArgumentError("no action is in it");
    return schedule;
  } catch (const Error& error) {
    throw BadSchedule(fmt::format("{}: {}", name_of(path), error.what()));
  }
}

Schedule build(const Source& source) {
  if (!source.ranks || !source.microbatches) {
    throw BadUsage(
        fmt::format("{} needs --{}", source.what, !source.ranks ? "ranks" : "microbatches"));
  }
  try {
    return build_schedule(source.what, {.ranks = *source.ranks,
                                        .microbatches = *source.microbatches,
                                        .stages_per_rank = source.stages_per_rank});
  } catch (const ArgumentError& error) {
    throw BadUsage(error.what());
  }
}

Loaded load(const Source& source, const Lowering& lowering, const GraphChoice& graph) {
  const ScheduleKind* kind = source.what == "-" ? nullptr : find_kind(source.what);
  const std::optional<VerifyMode> mode = parse_mode(source.mode);
  std::string name = kind != nullptr ? std::string(kind->name) : name_of(source.what);
  Schedule schedule = kind != nullptr ? build(source) : read_source(source);
  StageGraph stages = make_graph(graph, schedule.num_stages());
  if (lowering.lower) {
    schedule = lower_schedule(schedule, stages, lowering, mode, name);
  } else if (kind == nullptr) {
    verify_or_throw(schedule, stages, name, {.mode = mode.value_or(infer_mode(schedule))});
  }
  return {std::move(name), std::move(schedule), std::move(stages)};
}

StageGraph make_graph(const GraphChoice& choice, int32_t stages) {
  try {
    std::vector<StageEdge> edges = parse_edges(choice.edges);
    if (choice.no_chain) return StageGraph::of(stages, std::move(edges));
    return StageGraph::chain(stages).with_edges(edges);
  } catch (const ParseError& error) {
    throw BadUsage(fmt::format("--edges: {}", without_line(error)));
  } catch (const ArgumentError& error) {
    throw BadUsage(fmt::format("--edges: {}", error.what()));
  }
}

CostModel make_costs(const CostChoice& choice) {
  if (choice.costs) {
    try {
      return parse_costs(*choice.costs);
    } catch (const ParseError& error) {
      throw BadUsage(fmt::format("--costs: {}", without_line(error)));
    } catch (const Error& error) {
      throw BadUsage(fmt::format("--costs: {}", error.what()));
    }
  }
  if (choice.file) {
    const std::string text = read_all(*choice.file);
    try {
      return parse_cost_file(text);
    } catch (const Error& error) {
      throw BadUsage(fmt::format("{}: {}", name_of(*choice.file), error.what()));
    }
  }
  return {};
}

std::optional<VerifyMode> parse_mode(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  for (const VerifyMode mode :
       {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
    if (*text == to_string(mode)) return mode;
  }
  throw BadUsage(fmt::format("--mode is training, forward-only or partial, got {}", quote(*text)));
}

Schedule lower_schedule(const Schedule& schedule, const StageGraph& graph, const Lowering& lowering,
                        std::optional<VerifyMode> mode, const std::string& name) {
  if (has_transfers(schedule)) {
    throw BadSchedule(fmt::format("{}: it is lowered already: it has transfers", name));
  }
  LowerOptions options;
  options.max_active_stages = lowering.max_active_stages;
  options.prefetch = lowering.prefetch;
  options.mode = mode;
  try {
    return lower(at_compute_level(schedule), graph, options);
  } catch (const Error& error) {
    throw BadSchedule(fmt::format("{}: {}", name, error.what()));
  }
}

}  // namespace stagecraft::cli
