// stagecraft compare: all schedules of one shape in a table.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/schedule_text.h"
#include "cli/simulation.h"
#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/sim/compare_schedules.h"
#include "stagecraft/sim/unshard_lookahead.h"

namespace stagecraft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;
/// The lookahead of UNSHARD by rank, for each schedule and number of stages a rank, if it was
/// found.
using Lookaheads = std::map<std::pair<std::string, int32_t>, std::vector<int32_t>>;

void require_uniform(const CostModel& costs) {
  if (!costs.stages.empty() || !costs.microbatches.empty() || costs.output_bytes.size() > 1 ||
      costs.weights.size() > 1 || costs.gather.size() > 1 || costs.gathered.size() > 1) {
    throw BadUsage(
        "compare takes one cost for all stages and microbatches, since schedules differ in stages; "
        "only links may differ");
  }
}

std::string stages_text(int32_t stages_per_rank) {
  return fmt::format("{} a rank", format_count(stages_per_rank, "stage"));
}

std::string format_table(const CompareCommand& command, const ScheduleComparison& comparison,
                         const Lookaheads& lookaheads) {
  std::string text = fmt::format(
      "{}, {}. Costs are of a rank's whole part of the model: with L stages a rank, each has "
      "1/L.\n",
      format_count(command.ranks, "rank"), format_microbatches(command.microbatches));
  if (comparison.schedules.empty()) {
    text += "No schedule fits.\n";
  } else {
    std::vector<std::string> head = {"schedule", "L",           "time",     "vs best",
                                     "bubble",   "peak memory", "transfers"};
    if (!lookaheads.empty()) head.push_back("lookahead");
    TextTable table(head, 1);
    const double best = comparison.schedules.front().result.makespan;
    for (const ComparedSchedule& row : comparison.schedules) {
      const double extra = best > 0 ? row.result.makespan / best - 1 : 0;
      std::vector<std::string> cells = {row.name,
                                        std::to_string(row.stages_per_rank),
                                        format_number(row.result.makespan),
                                        fmt::format("+{}", format_percent(extra)),
                                        format_percent(row.result.bubble),
                                        format_number(row.result.peak_memory),
                                        std::to_string(row.result.transfers)};
      if (!lookaheads.empty()) {
        const auto& found = lookaheads.at({row.name, row.stages_per_rank});
        cells.push_back(fmt::format("{}", fmt::join(found, ",")));
      }
      table.add(cells);
    }
    text += '\n' + table.to_string();
  }
  if (!comparison.unfit.empty()) text += "\nThese do not fit:\n";
  for (const UnfitSchedule& one : comparison.unfit) {
    text += fmt::format("  {}, {}: {}\n", one.name, stages_text(one.stages_per_rank), one.reason);
  }
  return text;
}

std::string format_json(const CompareCommand& command, const ScheduleComparison& comparison,
                        const Lookaheads& lookaheads) {
  OrderedJson json = {{"ranks", command.ranks}, {"microbatches", command.microbatches}};
  json["schedules"] = OrderedJson::array();
  for (const ComparedSchedule& row : comparison.schedules) {
    json["schedules"].push_back({{"schedule", row.name},
                                 {"stages_per_rank", row.stages_per_rank},
                                 {"makespan", to_json_number(row.result.makespan)},
                                 {"span", to_json_number(row.result.span)},
                                 {"bubble", to_json_number(row.result.bubble)},
                                 {"exposed_transfer", to_json_number(row.result.exposed_transfer)},
                                 {"exposed_gather", to_json_number(row.result.exposed_gather)},
                                 {"peak_memory", to_json_number(row.result.peak_memory)},
                                 {"transfers", row.result.transfers}});
    if (lookaheads.empty()) continue;
    json["schedules"].back()["unshard_lookahead"] = lookaheads.at({row.name, row.stages_per_rank});
  }
  json["unfit"] = OrderedJson::array();
  for (const UnfitSchedule& one : comparison.unfit) {
    json["unfit"].push_back(
        {{"schedule", one.name}, {"stages_per_rank", one.stages_per_rank}, {"reason", one.reason}});
  }
  return dump(json);
}

}  // namespace

int run(const CompareCommand& command) {
  const CostModel costs = make_costs(command.costs);
  require_uniform(costs);
  const bool is_sharded = !costs.gather.empty() || !costs.gathered.empty();
  if (command.lookahead != "full" && !is_sharded) {
    throw BadUsage(
        fmt::format("--unshard-lookahead {} needs the costs of gathers: pass G or MG with --costs",
                    command.lookahead));
  }
  Lookaheads lookaheads;
  const ScheduleComparison comparison = compare_schedules(
      {.ranks = command.ranks,
       .microbatches = command.microbatches,
       .stages_per_rank = command.stages_per_rank},
      [&](std::string_view name, const Schedule& schedule, int32_t stages_per_rank) {
        Loaded loaded{std::string(name), schedule, StageGraph::chain(schedule.num_stages())};
        const CostModel divided = divide_costs(costs, stages_per_rank);
        const int32_t active = command.max_active_stages;
        UnshardLookahead lookahead =
            command.lookahead == "auto" ? Lookahead::kAuto : Lookahead::kFull;
        try {
          if (command.lookahead == "least") {
            const auto found = find_unshard_lookahead(schedule, divided, loaded.graph, active);
            lookaheads[{loaded.name, stages_per_rank}] = found;
            lookahead = found;
          }
          if (is_sharded) loaded.schedule = shard_stages(schedule, active, lookahead);
          Simulation result = simulate(loaded, divided);
          check_cap(loaded, divided, result);
          return result;
        } catch (const BadSchedule& error) {
          throw ScheduleError(error.what(), {});
        }
      });
  write_output("-", command.json ? format_json(command, comparison, lookaheads)
                                 : format_table(command, comparison, lookaheads));
  if (comparison.schedules.empty()) {
    throw BadSchedule("no schedule fits this shape and these costs");
  }
  return kGood;
}

}  // namespace stagecraft::cli
