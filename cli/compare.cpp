// stagecraft compare: all schedules of one shape in a table.

#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/failure.h"
#include "cli/input.h"
#include "cli/output.h"
#include "cli/report.h"
#include "cli/schedule_text.h"
#include "cli/simulation.h"
#include "stagecraft/schedule/builders/builders.h"

namespace stagecraft::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Row {
  std::string_view name;
  int32_t stages_per_rank = 1;
  Simulation result;
};

struct Unfit {
  std::string_view name;
  int32_t stages_per_rank = 1;
  std::string reason;
};

// Costs are of what one rank has; whoever cuts that into `parts` stages has them in each stage.
CostModel divide(CostModel costs, int32_t parts) {
  StageCost& stage = costs.stage;
  for (double* cost :
       {&stage.forward, &stage.backward_input, &stage.backward_weight, &stage.memory_forward,
        &stage.memory_freed_by_input, &stage.memory_freed_by_weight}) {
    *cost /= parts;
  }
  if (stage.backward) *stage.backward /= parts;
  for (double& weight : costs.weights) weight /= parts;
  return costs;
}

void require_uniform(const CostModel& costs) {
  if (!costs.stages.empty() || !costs.microbatches.empty() || costs.output_bytes.size() > 1 ||
      costs.weights.size() > 1) {
    throw BadUsage(
        "compare takes one cost for all stages and microbatches, since schedules differ in stages; "
        "only links may differ");
  }
}

std::vector<int32_t> stages_to_try(const ScheduleKind& kind, std::optional<int32_t> given) {
  std::vector<int32_t> all = {kind.default_stages_per_rank};
  if (given && *given != all.front()) all.push_back(*given);
  return all;
}

std::string stages_text(int32_t stages_per_rank) {
  return fmt::format("{} a rank", format_count(stages_per_rank, "stage"));
}

// Messages that begin with the schedule's name stand behind it here.
std::string without_name(std::string_view message, std::string_view name) {
  const std::string prefix = fmt::format("{}: ", name);
  return std::string(message.substr(message.starts_with(prefix) ? prefix.size() : 0));
}

std::string format_table(const CompareCommand& command, const std::vector<Row>& rows,
                         const std::vector<Unfit>& unfit) {
  std::string text = fmt::format(
      "{}, {}. Costs are of a rank's whole part of the model: with L stages a rank, each has "
      "1/L.\n",
      format_count(command.ranks, "rank"), format_microbatches(command.microbatches));
  if (rows.empty()) {
    text += "No schedule fits.\n";
  } else {
    TextTable table({"schedule", "L", "time", "vs best", "bubble", "peak memory", "transfers"}, 1);
    const double best = rows.front().result.makespan;
    for (const Row& row : rows) {
      const double extra = best > 0 ? row.result.makespan / best - 1 : 0;
      table.add({std::string(row.name), std::to_string(row.stages_per_rank),
                 format_number(row.result.makespan), fmt::format("+{}", format_percent(extra)),
                 format_percent(row.result.bubble), format_number(row.result.peak_memory),
                 std::to_string(row.result.transfers)});
    }
    text += '\n' + table.to_string();
  }
  if (!unfit.empty()) text += "\nThese do not fit:\n";
  for (const Unfit& one : unfit) {
    text += fmt::format("  {}, {}: {}\n", one.name, stages_text(one.stages_per_rank), one.reason);
  }
  return text;
}

std::string format_json(const CompareCommand& command, const std::vector<Row>& rows,
                        const std::vector<Unfit>& unfit) {
  Json json = {{"ranks", command.ranks}, {"microbatches", command.microbatches}};
  json["schedules"] = Json::array();
  for (const Row& row : rows) {
    json["schedules"].push_back({{"schedule", row.name},
                                 {"stages_per_rank", row.stages_per_rank},
                                 {"makespan", to_json_number(row.result.makespan)},
                                 {"span", to_json_number(row.result.span)},
                                 {"bubble", to_json_number(row.result.bubble)},
                                 {"exposed_transfer", to_json_number(row.result.exposed_transfer)},
                                 {"peak_memory", to_json_number(row.result.peak_memory)},
                                 {"transfers", row.result.transfers}});
  }
  json["unfit"] = Json::array();
  for (const Unfit& one : unfit) {
    json["unfit"].push_back(
        {{"schedule", one.name}, {"stages_per_rank", one.stages_per_rank}, {"reason", one.reason}});
  }
  return dump(json);
}

}  // namespace

int run(const CompareCommand& command) {
  const CostModel costs = make_costs(command.costs);
  require_uniform(costs);
  std::vector<Row> rows;
  std::vector<Unfit> unfit;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    for (const int32_t stages : stages_to_try(kind, command.stages_per_rank)) {
      try {
        const Schedule schedule = kind.build({.ranks = command.ranks,
                                              .microbatches = command.microbatches,
                                              .stages_per_rank = stages});
        const Loaded loaded{std::string(kind.name), schedule,
                            StageGraph::chain(schedule.num_stages())};
        const CostModel divided = divide(costs, stages);
        Simulation result = simulate(loaded, divided);
        check_cap(loaded, divided, result);
        result.timeline = {};
        result.memory = {};
        result.critical_path = {};
        rows.push_back({kind.name, stages, std::move(result)});
      } catch (const BadUsage&) {
        throw;  // the costs, which are the same for all
      } catch (const Error& error) {
        // Asked for as well; that it fits otherwise says enough.
        if (!rows.empty() && rows.back().name == kind.name) continue;
        unfit.push_back({kind.name, stages, without_name(error.what(), kind.name)});
      }
    }
  }
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) {
    return a.result.makespan < b.result.makespan;
  });
  write_output(
      "-", command.json ? format_json(command, rows, unfit) : format_table(command, rows, unfit));
  if (rows.empty()) throw BadSchedule("no schedule fits this shape and these costs");
  return kGood;
}

}  // namespace stagecraft::cli
