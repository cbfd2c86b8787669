#include "cli/report.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <set>
#include <string_view>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/schedule_text.h"
#include "stagecraft/base/json_text.h"

namespace stagecraft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

std::string_view to_string(PathStep::Cause cause) {
  constexpr std::array<std::string_view, 5> kNames = {"start", "rank", "value", "transfer",
                                                      "gather"};
  return kNames[static_cast<std::size_t>(cause)];
}

OrderedJson describe(const std::string& name, const Schedule& schedule) {
  return {{"schedule", name},
          {"level", stagecraft::to_string(schedule.level())},
          {"ranks", schedule.num_ranks()},
          {"stages", schedule.num_stages()},
          {"microbatches", schedule.num_microbatches()},
          {"actions", schedule.num_actions()}};
}

std::string headline(const std::string& name, const Schedule& schedule) {
  return fmt::format("{}: {}, {} level\n", name, describe_shape(schedule),
                     stagecraft::to_string(schedule.level()));
}

std::string fact(std::string_view name, const std::string& value) {
  return fmt::format("{:<20}{}\n", name, value);
}

Action action_at(const Schedule& schedule, Rank rank, std::size_t offset) {
  return schedule.actions(rank)[offset];
}

std::string text_at(const Schedule& schedule, Rank rank, std::size_t offset) {
  return stagecraft::to_string(slot_at(schedule.actions(rank), offset));
}

// The times of the kinds of actions on the critical path, such as "31 actions on 4 ranks: F 4, B
// 18, transfers 2".
std::string summarize_path(const Schedule& schedule, const Simulation& simulation) {
  constexpr std::array kTypes = {ActionType::kForward, ActionType::kBackwardInput,
                                 ActionType::kBackwardWeight, ActionType::kBackward};
  std::array<double, kTypes.size()> spent{};
  double overlapped = 0;
  double computed = 0;
  double gathers = 0;
  double end = 0;
  std::set<Rank> ranks;
  for (const PathStep& step : simulation.critical_path) {
    const Interval when = simulation.timeline[step.rank.value()][step.offset];
    const ActionType type = action_at(schedule, step.rank, step.offset).type();
    if (is_compute(type)) spent[static_cast<std::size_t>(type)] += when.end - when.start;
    if (type == ActionType::kOverlap) overlapped += when.end - when.start;
    ranks.insert(step.rank);
    // The first action waits for weights only.
    const bool is_first = step.cause == PathStep::Cause::kStart;
    if (is_first || step.cause == PathStep::Cause::kGather) gathers += when.start - end;
    end = when.end;
  }
  std::string parts;
  const auto add = [&](std::string_view what, double time) {
    if (time <= 0) return;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", what, format_number(time));
    computed += time;
  };
  for (std::size_t i = 0; i < kTypes.size(); ++i) add(stagecraft::to_string(kTypes[i]), spent[i]);
  add("overlaps", overlapped);
  add("gathers", gathers);
  const double rest = simulation.makespan - computed;
  if (rest > 1e-9 * simulation.makespan) add("transfers", rest);
  return fmt::format(
      "{} on {}{}{}", format_count(static_cast<int64_t>(simulation.critical_path.size()), "action"),
      format_count(static_cast<int64_t>(ranks.size()), "rank"), parts.empty() ? "" : ": ", parts);
}

OrderedJson path_json(const Schedule& schedule, const Simulation& simulation) {
  OrderedJson path = OrderedJson::array();
  for (const PathStep& step : simulation.critical_path) {
    const Interval when = simulation.timeline[step.rank.value()][step.offset];
    path.push_back({{"rank", step.rank.value()},
                    {"action", text_at(schedule, step.rank, step.offset)},
                    {"start", to_json_number(when.start)},
                    {"end", to_json_number(when.end)},
                    {"cause", to_string(step.cause)}});
  }
  return path;
}

OrderedJson timeline_json(const Schedule& schedule, const Simulation& simulation) {
  OrderedJson ranks = OrderedJson::array();
  for (int32_t r = 0; r < schedule.num_ranks(); ++r) {
    OrderedJson actions = OrderedJson::array();
    const auto list = schedule.actions(Rank(r));
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_idle() || list[i].is_overlap()) continue;
      const Interval when = simulation.timeline[r][i];
      actions.push_back({{"action", stagecraft::to_string(list[i])},
                         {"start", to_json_number(when.start)},
                         {"end", to_json_number(when.end)}});
    }
    ranks.push_back(std::move(actions));
  }
  return ranks;
}

OrderedJson memory_json(const Simulation& simulation) {
  OrderedJson ranks = OrderedJson::array();
  for (const auto& samples : simulation.memory) {
    OrderedJson list = OrderedJson::array();
    for (const MemorySample& sample : samples) {
      list.push_back(
          {{"time", to_json_number(sample.time)}, {"memory", to_json_number(sample.memory)}});
    }
    ranks.push_back(std::move(list));
  }
  return ranks;
}

// The number of steps until the rank's last slot.
int64_t num_steps(const std::vector<UnitSteps::Done>& done) {
  return done.empty() ? 0 : done.back().step + 1;
}

}  // namespace

OrderedJson to_json_number(double value) {
  constexpr double kExact = 9007199254740992.0;
  if (std::abs(value) < kExact && value == std::floor(value)) return static_cast<int64_t>(value);
  return value;
}

std::string dump(const OrderedJson& json) {
  return json_to_text(json, {.indent = 2, .repair = true}) + '\n';
}

std::string report_text(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation) {
  std::string text = headline(name, schedule);
  text += fact("makespan", format_number(simulation.makespan));
  text += fact("span", format_number(simulation.span));
  text += fact("bubble", format_percent(simulation.bubble));
  text += fact("exposed transfers", format_number(simulation.exposed_transfer));
  if (simulation.exposed_gather > 0) {
    text += fact("exposed gathers", format_number(simulation.exposed_gather));
  }
  text += fact("peak memory", format_number(simulation.peak_memory));
  text += fact("transfers", fmt::format("{}", simulation.transfers));
  text += fact("critical path", summarize_path(schedule, simulation));
  TextTable table({"rank", "start", "end", "busy", "bubble", "exposed", "peak memory", "sent"});
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankStats& rank = simulation.ranks[r];
    table.add({std::to_string(r), format_number(rank.first_start), format_number(rank.last_end),
               format_number(rank.busy), format_percent(rank.bubble),
               format_number(rank.exposed_transfer), format_number(rank.peak_memory),
               std::to_string(rank.transfers_sent)});
  }
  return text + '\n' + table.to_string();
}

std::string report_json(const std::string& name, const Schedule& schedule,
                        const Simulation& simulation, bool timeline) {
  OrderedJson json = describe(name, schedule);
  json["makespan"] = to_json_number(simulation.makespan);
  json["span"] = to_json_number(simulation.span);
  json["bubble"] = to_json_number(simulation.bubble);
  json["exposed_transfer"] = to_json_number(simulation.exposed_transfer);
  json["exposed_gather"] = to_json_number(simulation.exposed_gather);
  json["peak_memory"] = to_json_number(simulation.peak_memory);
  json["transfers"] = simulation.transfers;
  json["per_rank"] = OrderedJson::array();
  for (std::size_t r = 0; r < simulation.ranks.size(); ++r) {
    const RankStats& rank = simulation.ranks[r];
    json["per_rank"].push_back({{"rank", r},
                                {"first_start", to_json_number(rank.first_start)},
                                {"last_end", to_json_number(rank.last_end)},
                                {"busy", to_json_number(rank.busy)},
                                {"bubble", to_json_number(rank.bubble)},
                                {"exposed_transfer", to_json_number(rank.exposed_transfer)},
                                {"peak_memory", to_json_number(rank.peak_memory)},
                                {"transfers_sent", rank.transfers_sent}});
  }
  json["critical_path"] = path_json(schedule, simulation);
  json["over_cap"] = OrderedJson::array();
  for (const OverCap& over : simulation.over_cap) {
    json["over_cap"].push_back(
        {{"rank", over.rank.value()},
         {"action",
          over.offset ? OrderedJson(text_at(schedule, over.rank, *over.offset)) : OrderedJson()},
         {"time", to_json_number(over.time)},
         {"memory", to_json_number(over.memory)}});
  }
  if (timeline) {
    json["timeline"] = timeline_json(schedule, simulation);
    json["memory"] = memory_json(simulation);
  }
  return dump(json);
}

std::string report_text(const std::string& name, const Schedule& schedule, const UnitSteps& run) {
  std::string text = headline(name, schedule) + fact("steps", fmt::format("{}", run.steps));
  TextTable table({"rank", "last step", "busy", "waiting"});
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const int64_t size = num_steps(run.ranks[r]);
    const auto busy = static_cast<int64_t>(run.ranks[r].size());
    table.add({std::to_string(r), size == 0 ? "-" : std::to_string(size - 1), std::to_string(busy),
               std::to_string(size - busy)});
  }
  return text + '\n' + table.to_string();
}

std::string report_json(const std::string& name, const Schedule& schedule, const UnitSteps& run,
                        bool timeline) {
  OrderedJson json = describe(name, schedule);
  json["steps"] = run.steps;
  json["per_rank"] = OrderedJson::array();
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    const int64_t size = num_steps(run.ranks[r]);
    const auto busy = static_cast<int64_t>(run.ranks[r].size());
    json["per_rank"].push_back(
        {{"rank", r}, {"steps", size}, {"busy", busy}, {"waiting", size - busy}});
  }
  if (!timeline) return dump(json);
  json["timeline"] = OrderedJson::array();
  for (std::size_t r = 0; r < run.ranks.size(); ++r) {
    std::vector<std::string> texts;
    for (const Slot& slot : schedule.slots(Rank(static_cast<int32_t>(r)))) {
      texts.push_back(stagecraft::to_string(slot));
    }
    OrderedJson row = OrderedJson::array();
    for (const auto& [slot, step] : run.ranks[r]) {
      while (static_cast<int64_t>(row.size()) < step) row.push_back(nullptr);
      row.push_back(texts[static_cast<std::size_t>(slot)]);
    }
    json["timeline"].push_back(std::move(row));
  }
  return dump(json);
}

}  // namespace stagecraft::cli
