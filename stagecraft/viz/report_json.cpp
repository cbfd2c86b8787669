#include "stagecraft/viz/report_json.h"

#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/viz/bars.h"

namespace stagecraft {
namespace {

using Json = nlohmann::ordered_json;

void check(const RunReport& report) {
  viz::lay_out(report.schedule, report.run);
  if (report.plan) viz::lay_out(report.schedule, *report.plan, "plan");
  require<ArgumentError>(report.ranks.size() == report.schedule.lists().size(),
                         "the report is about {} ranks, its schedule has {}", report.ranks.size(),
                         report.schedule.lists().size());
}

Json facts(const std::vector<ReportFact>& all) {
  Json json = Json::array();
  for (const ReportFact& fact : all) json.push_back({{"name", fact.name}, {"value", fact.value}});
  return json;
}

Json points(const std::vector<LossPoint>& all) {
  Json json = Json::array();
  for (const LossPoint& point : all) json.push_back(Json::array({point.step, point.loss}));
  return json;
}

Json samples(const Simulation* simulation, std::size_t rank) {
  Json json = Json::array();
  if (simulation == nullptr || rank >= simulation->memory.size()) return json;
  for (const MemorySample& sample : simulation->memory[rank]) {
    json.push_back(Json::array({sample.time, sample.memory}));
  }
  return json;
}

Json optional(const std::optional<double>& value) {
  return value ? Json(*value) : Json();
}

Json summary(const ActionTimeSummary& times) {
  if (times.count == 0) return {};
  return {{"count", times.count},
          {"mean", times.mean},
          {"median", times.median},
          {"least", times.least},
          {"most", times.most}};
}

Json host_json(const ReportedRank& rank) {
  if (!rank.host) return {};
  return {{"compute", rank.host->compute},
          {"late", rank.host->late},
          {"launch_bound", rank.host->launch_bound}};
}

Json device_memory_json(const ReportedRank& rank) {
  if (!rank.device_memory) return {};
  return {{"peak_allocated", rank.device_memory->peak_allocated},
          {"reserved", rank.device_memory->reserved}};
}

Json rank_json(const RunReport& report, std::size_t r) {
  const ReportedRank& rank = report.ranks[r];
  const Simulation* plan = report.plan ? &*report.plan : nullptr;
  return {{"rank", r},
          {"compute", rank.compute},
          {"bubble", rank.bubble()},
          {"start_up", rank.start_up},
          {"waiting_for_activations", rank.waiting_for_activations},
          {"waiting_for_gradients", rank.waiting_for_gradients},
          {"run_out", rank.run_out},
          {"exposed_transfer", rank.exposed_transfer()},
          {"exposed_activations", rank.exposed_activations},
          {"exposed_gradients", rank.exposed_gradients},
          {"waiting_for_weights", rank.waiting_for_weights},
          {"other", rank.other},
          {"bytes_sent", rank.bytes_sent},
          {"bytes_received", rank.bytes_received},
          {"clock", rank.is_device_time ? "device" : "host"},
          {"is_replayed", rank.is_replayed},
          {"host", host_json(rank)},
          {"device_memory", device_memory_json(rank)},
          {"memory",
           {{"parameters", rank.parameters},
            {"gradients", rank.gradients},
            {"recorded_peak", optional(rank.recorded_peak)},
            {"predicted_peak", optional(rank.predicted_peak)},
            {"predicted_at", rank.predicted_at},
            {"recorded", samples(&report.run, r)},
            {"predicted", samples(plan, r)}}}};
}

Json stage_json(const ReportedStage& stage, std::size_t number) {
  return {{"stage", number},
          {"rank", stage.rank},
          {"name", stage.name},
          {"parameters", stage.parameters},
          {"parameter_bytes", stage.parameter_bytes},
          {"F", summary(stage.forward)},
          {"I", summary(stage.backward_input)},
          {"W", summary(stage.backward_weight)},
          {"B", summary(stage.backward)},
          {"activations_sent", stage.activations_sent},
          {"gradients_sent", stage.gradients_sent}};
}

Json comparison_json(const RunReport& report) {
  Json json = {
      {"schedules", Json::array()}, {"unfit", Json::array()}, {"assumptions", report.assumptions}};
  for (const ComparedSchedule& one : report.comparison.schedules) {
    const bool is_this =
        one.name == report.schedule_name &&
        (report.stages_per_rank == 0 || one.stages_per_rank == report.stages_per_rank);
    json["schedules"].push_back({{"schedule", one.name},
                                 {"stages_per_rank", one.stages_per_rank},
                                 {"is_this_run", is_this},
                                 {"makespan", one.result.makespan},
                                 {"bubble_share", one.result.bubble},
                                 {"peak_memory", one.result.peak_memory},
                                 {"transfers", one.result.transfers}});
  }
  for (const UnfitSchedule& one : report.comparison.unfit) {
    json["unfit"].push_back(
        {{"schedule", one.name}, {"stages_per_rank", one.stages_per_rank}, {"reason", one.reason}});
  }
  return json;
}

Json actions_json(const RunReport& report) {
  Json ranks = Json::array();
  for (std::size_t r = 0; r < report.schedule.lists().size(); ++r) {
    const ActionList& list = report.schedule.lists()[r];
    Json& actions = ranks.emplace_back(Json::array());
    for (std::size_t i = 0; i < list.size(); ++i) {
      const Interval& ran = report.run.timeline[r][i];
      if (list[i].is_idle() || list[i].is_overlap() || !ran.ran()) continue;
      Json action = {{"action", to_string(list[i])}, {"start", ran.start}, {"end", ran.end}};
      if (report.plan) {
        action["planned_start"] = report.plan->timeline[r][i].start;
        action["planned_end"] = report.plan->timeline[r][i].end;
      }
      actions.push_back(std::move(action));
    }
  }
  return ranks;
}

Json to_json(const RunReport& report) {
  check(report);
  Json json = {{"format", "stagecraft run report"},
               {"version", 1},
               {"time_unit", "us"},
               {"memory_unit", "B"},
               {"title", report.title},
               {"command", report.command},
               {"failure", report.failure},
               {"facts", facts(report.facts)},
               {"figures", facts(report.figures)}};
  json["schedule"] = {{"name", report.schedule_name},
                      {"ranks", report.schedule.num_ranks()},
                      {"stages", report.schedule.num_stages()},
                      {"microbatches", report.schedule.num_microbatches()},
                      {"actions", report.schedule.num_actions()},
                      {"not_run", report.not_run}};
  json["step"] = {
      {"makespan", report.run.makespan},
      {"compute_share", report.share([](const ReportedRank& rank) { return rank.compute; })},
      {"bubble_share", report.share([](const ReportedRank& rank) { return rank.bubble(); })},
      {"exposed_transfer_share",
       report.share([](const ReportedRank& rank) { return rank.exposed_transfer(); })},
      {"other_share", report.share([](const ReportedRank& rank) { return rank.other; })},
      {"transfers", report.run.transfers}};
  if (report.plan) {
    json["plan"] = {{"makespan", report.plan->makespan},
                    {"bubble_share", report.plan->bubble},
                    {"note", report.plan_note}};
  }
  json["memory_note"] = report.memory_note;
  json["ranks"] = Json::array();
  for (std::size_t r = 0; r < report.ranks.size(); ++r)
    json["ranks"].push_back(rank_json(report, r));
  json["stages"] = Json::array();
  for (std::size_t s = 0; s < report.stages.size(); ++s) {
    json["stages"].push_back(stage_json(report.stages[s], s));
  }
  json["losses"] = points(report.losses);
  json["evaluations"] = points(report.evaluations);
  json["comparison"] = comparison_json(report);
  return json;
}

}  // namespace

double RunReport::share(double (*part)(const ReportedRank&)) const {
  const double all = run.makespan * static_cast<double>(ranks.size());
  if (all <= 0) return 0;
  double sum = 0;
  for (const ReportedRank& rank : ranks) sum += part(rank);
  return sum / all;
}

std::string report_json(const RunReport& report) {
  Json json = to_json(report);
  json["actions"] = actions_json(report);
  return json_to_text(json, {.indent = 1, .repair = true}) + '\n';
}

namespace viz {

std::string report_data(const RunReport& report) {
  std::string data;
  for (const char c : json_to_text(to_json(report), {.ascii = true, .repair = true})) {
    if (c == '<') {
      data += "\\u003c";
    } else {
      data += c;
    }
  }
  return data;
}

}  // namespace viz
}  // namespace stagecraft
