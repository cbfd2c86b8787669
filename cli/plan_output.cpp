#include "cli/plan_output.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "cli/output.h"
#include "cli/report.h"
#include "stagecraft/plan/plan_text.h"
#include "stagecraft/viz/sections.h"
#include "stagecraft/viz/terminal.h"

namespace stagecraft::cli {
namespace {

using OrderedJson = nlohmann::ordered_json;

OrderedJson numbers(const std::vector<double>& values) {
  OrderedJson list = OrderedJson::array();
  for (const double value : values) list.push_back(to_json_number(value));
  return list;
}

OrderedJson choice_json(const PlanChoice& choice) {
  OrderedJson recomputed = OrderedJson::array();
  for (std::size_t s = 0; s < choice.recompute.size(); ++s) {
    if (choice.recompute[s]) recomputed.push_back(s);
  }
  return {{"stages_per_rank", choice.stages_per_rank},
          {"stages", choice.num_stages()},
          {"placement", std::string(to_string(choice.placement))},
          {"begins", choice.begins},
          {"recomputed", std::move(recomputed)}};
}

OrderedJson row_json(const PlanRow& row) {
  OrderedJson json = choice_json(row.choice);
  json["schedule"] = row.schedule;
  json["built_in"] = row.built_in;
  json["split"] = row.split;
  json["time"] = to_json_number(row.value);
  json["makespan"] = to_json_number(row.result.makespan);
  json["span"] = to_json_number(row.result.span);
  json["bound"] = to_json_number(row.bound.value);
  json["bound_argument"] = std::string(to_string(row.bound.argument));
  json["bound_rank"] = row.bound.rank.value();
  json["gap"] = row.bound.value > 0 ? row.value / row.bound.value - 1 : 0;
  json["bubble"] = row.result.bubble;
  json["peaks"] = numbers(row.result.peaks);
  json["transfers"] = row.result.transfers;
  if (!row.lookahead.empty()) {
    json["max_active_stages"] = row.choice.most_active();
    json["unshard_lookahead"] = row.lookahead;
    json["exposed_gather"] = to_json_number(row.result.exposed_gather);
  }
  return json;
}

Simulation simulate_plan(const Plan& plan) {
  return simulate_choice(StageComposer(plan.problem, plan.objective), plan.best.choice,
                         plan.schedule);
}

std::string title_of(const Plan& plan) {
  return fmt::format("{} on {}, {} stages", plan.best.schedule,
                     format_count(plan.problem.num_ranks(), "rank"), plan.best.choice.num_stages());
}

PageSection table_section(std::string title, std::string note, PlanTable table) {
  PageSection section{.title = std::move(title), .note = std::move(note)};
  section.header = std::move(table.header);
  section.rows = std::move(table.rows);
  return section;
}

PageSection memory_section(const Plan& plan) {
  PageSection section{.title = "Memory",
                      .note =
                          "The most that each rank holds at a time, weights, gradients and "
                          "optimizer state included. The timeline shows it over time."};
  section.header = {"rank", "weights and state", "peak", "memory", "used"};
  const StageComposer composer(plan.problem, plan.objective);
  const ScheduleProblem stages = composer.compose(plan.best.choice);
  for (std::size_t r = 0; r < plan.problem.ranks.size(); ++r) {
    const std::optional<double>& memory = plan.problem.ranks[r].memory;
    const double peak = plan.best.result.peaks[r];
    section.rows.push_back({std::to_string(r), format_memory(plan.problem, stages.ranks[r].fixed),
                            format_memory(plan.problem, peak),
                            memory ? format_memory(plan.problem, *memory) : "unlimited",
                            memory ? fmt::format("{:.1f} %", 100 * peak / *memory) : "-"});
  }
  return section;
}

PageSection curve_section(const Plan& plan, const std::vector<CurvePoint>& curve) {
  PageSection section{.title = "Time against memory", .note = curve_sentence(plan, curve)};
  section.chart.x_title = plan.problem.units.bytes ? "memory a rank (GiB)" : "memory a rank";
  section.chart.y_title = "time";
  section.chart.floor_title = "bound for the stages of each plan";
  const double unit = plan.problem.units.bytes ? 1073741824.0 : 1;
  for (const CurvePoint& point : curve) {
    section.chart.points.push_back({point.memory / unit, point.value});
    section.chart.floor.push_back({point.memory / unit, point.bound});
  }
  return section;
}

std::string path_note(const Plan& plan, const Simulation& run) {
  double computed = 0;
  for (const PathStep& step : run.critical_path) {
    const Interval when = run.timeline[step.rank.value()][step.offset];
    computed += when.end - when.start;
  }
  return fmt::format("The critical path has {}: {} of compute and {} of {}. The timeline shows it.",
                     format_count(static_cast<long long>(run.critical_path.size()), "action"),
                     format_time(plan.problem, computed),
                     format_time(plan.problem, std::max(0.0, run.makespan - computed)),
                     plan.problem.sharding.has_gathers() ? "transfers and gathers" : "transfers");
}

}  // namespace

std::string plan_json(const Plan& plan, const std::vector<CurvePoint>& curve) {
  OrderedJson json = {{"ranks", plan.problem.num_ranks()},
                      {"microbatches", plan.problem.microbatches},
                      {"layers", plan.problem.layers.size()},
                      {"objective", std::string(to_string(plan.objective))},
                      {"plan", row_json(plan.best)},
                      {"even_share", to_json_number(plan.any_split.even_share)},
                      {"bound_any_split", to_json_number(plan.any_split.value)},
                      {"gap", plan.gap()},
                      {"gap_any_split", plan.any_split_gap()},
                      {"bound_sentence", to_sentence(plan.best.bound)},
                      {"seed", plan.seed},
                      {"seconds", plan.seconds},
                      {"interrupted", plan.interrupted}};
  if (plan.problem.sharding.replicas > 1) {
    json["replicas"] = plan.problem.sharding.replicas;
    json["shard"] = std::string(to_string(plan.problem.sharding.kind));
  }
  json["rows"] = OrderedJson::array();
  for (const PlanRow& row : plan.rows) json["rows"].push_back(row_json(row));
  json["unfit"] = OrderedJson::array();
  for (const UnfitRow& row : plan.unfit) {
    json["unfit"].push_back({{"schedule", row.schedule},
                             {"stages_per_rank", row.stages_per_rank},
                             {"reason", row.reason}});
  }
  const PlanTable stages = stage_rows(plan);
  json["stages"] = OrderedJson::array();
  for (const std::vector<std::string>& row : stages.rows) {
    OrderedJson stage = OrderedJson::object();
    for (std::size_t i = 0; i < row.size(); ++i) stage[stages.header[i]] = row[i];
    json["stages"].push_back(std::move(stage));
  }
  json["curve"] = OrderedJson::array();
  for (const CurvePoint& point : curve) {
    json["curve"].push_back({{"memory", to_json_number(point.memory)},
                             {"time", to_json_number(point.value)},
                             {"bound", to_json_number(point.bound)},
                             {"schedule", point.schedule},
                             {"stages_per_rank", point.stages_per_rank},
                             {"recomputed", point.recomputed}});
  }
  return dump(json);
}

std::string draw_plan(const Plan& plan, std::optional<int32_t> width) {
  TerminalOptions options;
  constexpr int32_t kLeast = 40;
  options.width = width.value_or(std::max(kLeast, terminal_columns().value_or(options.width)));
  options.color = TerminalColor::kNone;
  return draw_terminal(plan.schedule, simulate_plan(plan), options);
}

std::string plan_page(const Plan& plan, const std::vector<CurvePoint>& curve) {
  const Simulation run = simulate_plan(plan);
  HtmlOptions options;
  options.title = title_of(plan);
  std::string headline = plan_headline(plan);
  headline.pop_back();
  options.subtitle = headline;
  std::vector<PageSection> sections;
  PageSection ways = table_section("Ways to run the model", "The star marks the plan.",
                                   plan_rows(plan, plan.rows.size()));
  for (std::size_t i = 0; i < ways.rows.size(); ++i) {
    if (ways.rows[i].front() == "*") ways.marked_row = i;
  }
  sections.push_back(std::move(ways));
  if (!plan.unfit.empty()) {
    PageSection unfit{.title = "These do not fit", .header = {"schedule", "stages a rank", "why"}};
    for (const UnfitRow& row : plan.unfit) {
      unfit.rows.push_back({row.schedule, std::to_string(row.stages_per_rank), row.reason});
    }
    sections.push_back(std::move(unfit));
  }
  sections.push_back(table_section("Stages", "", stage_rows(plan)));
  sections.push_back({.title = "Bounds", .note = plan_bounds(plan) + path_note(plan, run)});
  sections.push_back(memory_section(plan));
  if (curve.size() > 1) sections.push_back(curve_section(plan, curve));
  return draw_sections(plan.schedule, run, StageGraph::chain(plan.schedule.num_stages()), options,
                       sections);
}

}  // namespace stagecraft::cli
