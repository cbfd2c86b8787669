#include "cli/input.h"

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "cli/failure.h"
#include "cli/lowering_options.h"
#include "stagecraft/base/read_file.h"
#include "stagecraft/base/text_cursor.h"
#include "stagecraft/plan/plan_file.h"
#include "stagecraft/schedule/builders/builders.h"
#include "stagecraft/schedule/load.h"
#include "stagecraft/schedule/passes/torch_rules.h"

namespace stagecraft::cli {
namespace {

/// Turns errors into BadUsage. An error in the text of a schedule stays a ScheduleError.
template <typename Read>
Schedule or_bad_usage(Read&& read) {
  try {
    return read();
  } catch (const ScheduleError&) {
    throw;
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

Schedule read_source(const Source& source) {
  Schedule schedule = or_bad_usage([&] { return get_schedule(source.what); });
  if (source.ranks || source.microbatches || source.stages_per_rank) {
    throw BadUsage(fmt::format(
        "--ranks, --microbatches and --stages-per-rank are for a schedule by name; {} has its own",
        name_of(source.what)));
  }
  return schedule;
}

/// The costs of the stages of a plan file; nothing for any other source.
std::optional<CostModel> find_plan_costs(const std::string& source) {
  if (source.empty() || source == "-" || find_schedule_kind(source) != nullptr) return std::nullopt;
  std::string text;
  try {
    text = read_file(source);
  } catch (const Error&) {
    return std::nullopt;  // reading the schedule reports it
  }
  if (!looks_like_plan(text)) return std::nullopt;
  try {
    return parse_plan_costs(text);
  } catch (const Error& error) {
    throw BadSchedule(fmt::format("{}: {}", source, error.what()));
  }
}

// The message without the line number: the value of an option is one line.
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
  try {
    return read_file(path);
  } catch (const Error& error) {
    throw BadUsage(error.what());
  }
}

Schedule open_schedule(const std::string& path) {
  return or_bad_usage([&] { return read_schedule(path); });
}

Schedule build(const Source& source) {
  if (!source.ranks || !source.microbatches) {
    throw BadUsage(
        fmt::format("{} needs --{}", source.what, !source.ranks ? "ranks" : "microbatches"));
  }
  return or_bad_usage([&] {
    return build_schedule(source.what, {.ranks = *source.ranks,
                                        .microbatches = *source.microbatches,
                                        .stages_per_rank = source.stages_per_rank});
  });
}

Loaded load(const Source& source, const Lowering& lowering, const GraphChoice& graph) {
  const ScheduleKind* const kind = find_schedule_kind(source.what);
  const std::optional<VerifyMode> mode = parse_mode(source.mode);
  std::string name = kind != nullptr ? std::string(kind->name) : name_of(source.what);
  Schedule schedule = kind != nullptr ? build(source) : read_source(source);
  StageGraph stages = make_graph(graph, schedule.num_stages());
  schedule = prepare(std::move(schedule), stages, lowering, mode, name);
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

CostModel make_costs(const CostChoice& choice, const std::string& source) {
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
  return find_plan_costs(source).value_or(CostModel());
}

std::optional<VerifyMode> parse_mode(const std::optional<std::string>& text) {
  if (!text) return std::nullopt;
  for (const VerifyMode mode :
       {VerifyMode::kTraining, VerifyMode::kForwardOnly, VerifyMode::kPartial}) {
    if (*text == to_string(mode)) return mode;
  }
  throw BadUsage(fmt::format("--mode is training, forward-only or partial, got {}", quote(*text)));
}

Schedule prepare(Schedule schedule, const StageGraph& graph, const Lowering& lowering,
                 std::optional<VerifyMode> mode, const std::string& name) {
  if (lowering.lower && schedule.level() == Level::kLowered) {
    throw BadSchedule(fmt::format("{}: the schedule is lowered already: it has transfers", name));
  }
  LowerOptions options = lowering.options;
  options.mode = mode;
  if (lowering.target) {
    options.target = *find_lower_target(*lowering.target);
    check_target_options(options.target, options, lowering.lookahead);
  }
  if (lowering.lookahead) {
    options.unshard_lookahead =
        parse_lookahead(*lowering.lookahead, schedule.num_ranks(), options.max_active_stages);
  }
  const Level level = lowering.lower ? Level::kLowered : schedule.level();
  try {
    schedule = at_level(std::move(schedule), level, graph, options);
  } catch (const Error& error) {
    throw BadSchedule(fmt::format("{}: {}", name, error.what()));
  }
  if (lowering.target) {
    if (const auto refusal = find_torch_refusal(schedule, graph, options)) {
      throw BadSchedule(fmt::format("{}: {}", name, *refusal));
    }
  }
  return schedule;
}

}  // namespace stagecraft::cli
