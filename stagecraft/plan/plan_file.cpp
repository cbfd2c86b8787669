#include "stagecraft/plan/plan_file.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <utility>

#include <nlohmann/json.hpp>

#include "stagecraft/base/check.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/read_file.h"
#include "stagecraft/base/sha256.h"
#include "stagecraft/base/text_table.h"
#include "stagecraft/plan/plan_json.h"
#include "stagecraft/plan/unshard_choice.h"
#include "stagecraft/schedule/json.h"
#include "stagecraft/schedule/json_input.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

using Json = nlohmann::json;
using Ordered = nlohmann::ordered_json;
using plan::plan_flag;
using plan::plan_member;
using plan::plan_number;
using plan::plan_whole;
using plan::plan_word;
constexpr int kPlanVersion = 1;
/// The most stages of a plan: every stage has a layer.
constexpr std::size_t kMostPlanStages = kMostLayers;

LayerFile layer_file(const PlanProblem& problem) {
  return {.layers = problem.layers,
          .ranks = problem.ranks,
          .link = problem.link,
          .links = problem.links,
          .sizes = problem.sizes,
          .input_bytes = problem.input_bytes,
          .input_gradient = problem.input_gradient,
          .units = {}};
}

Ordered stages_json(const SavedPlan& plan) {
  Ordered stages = Ordered::array();
  for (std::size_t s = 0; s < plan.choice.begins.size(); ++s) {
    const StageId id(static_cast<int32_t>(s));
    Ordered stage = {{"rank", plan.schedule.placement().ranks()[id].value()},
                     {"begins_at_layer", plan.choice.begins[s]}};
    const std::string& name =
        plan.problem.layers[static_cast<std::size_t>(plan.choice.begins[s])].name;
    if (!name.empty()) stage["begins_at"] = name;
    if (s > 0 && s <= plan.model.split_points.size()) {
      stage["split_point"] = plan.model.split_points[s - 1];
    }
    stage["recompute"] = static_cast<bool>(plan.choice.recompute[s]);
    stages.push_back(std::move(stage));
  }
  return stages;
}

Ordered sharding_json(const SavedPlan& plan) {
  const PlanSharding& sharding = plan.problem.sharding;
  Ordered json = {{"replicas", sharding.replicas},
                  {"shard", std::string(to_string(sharding.kind))}};
  if (!sharding.has_gathers()) return json;
  json["max_active_stages"] = plan.choice.most_active();
  json["unshard_lookahead"] = plan.lookahead;
  return json;
}

/// Reads "sharding". Without it, there is one replica.
void read_sharding(const Json& json, PlanSharding& sharding) {
  if (!json.contains("sharding")) return;
  const Json& member = json["sharding"];
  require<ArgumentError>(member.is_object(), "\"sharding\": expected an object");
  sharding.replicas = static_cast<int32_t>(plan_whole(member, "replicas", 1, INT32_MAX));
  const std::string kind = plan_word(member, "shard");
  const std::optional<ShardKind> found = find_shard_kind(kind);
  require<ArgumentError>(
      found.has_value(),
      "\"shard\": expected \"none\", \"optimizer\", \"gradients\" or \"parameters\", got {}",
      describe_json(member["shard"]));
  sharding.kind = *found;
}

/// Reads how the plan gathers weights.
void read_gathers(const Json& json, SavedPlan& plan) {
  if (!plan.problem.sharding.has_gathers()) return;
  const Json& member = json["sharding"];
  const auto active =
      static_cast<int32_t>(plan_whole(member, "max_active_stages", 1, plan.choice.stages_per_rank));
  if (active < plan.choice.stages_per_rank) plan.choice.active_stages = active;
  const Json& lookahead = plan_member(member, "unshard_lookahead");
  require<ArgumentError>(lookahead.is_array(), "\"unshard_lookahead\": expected an array");
  for (const Json& number : lookahead) {
    require<ArgumentError>(number.is_number_unsigned() && number.get<uint64_t>() <= INT32_MAX,
                           "\"unshard_lookahead\": expected whole numbers, got {}",
                           describe_json(number));
    plan.lookahead.push_back(number.get<int32_t>());
  }
  try {
    resolve_lookahead(plan.lookahead, plan.num_ranks(), active);
  } catch (const ArgumentError& error) {
    throw ArgumentError(fmt::format("\"unshard_lookahead\": {}", error.what()));
  }
  try {
    verify_or_throw(plan.schedule, StageGraph::chain(plan.schedule.num_stages()),
                    "\"schedule\" does not fit \"max_active_stages\"",
                    {.mode = VerifyMode::kTraining, .max_active_stages = active});
  } catch (const ScheduleError& error) {
    throw ArgumentError(error.what());
  }
}

PlanProblem read_problem(const Json& json) {
  const Json& costs = plan_member(json, "costs");
  require<ArgumentError>(costs.is_object(), "\"costs\": expected an object");
  LayerFile file = parse_layer_file(json_to_text(costs));
  PlanProblem problem{.layers = std::move(file.layers),
                      .ranks = std::move(file.ranks),
                      .link = file.link,
                      .links = std::move(file.links),
                      .sizes = std::move(file.sizes),
                      .input_bytes = file.input_bytes,
                      .input_gradient = file.input_gradient};
  problem.microbatches =
      static_cast<int32_t>(plan_whole(json, "microbatches", 1, Action::kMaxMicrobatch));
  const Json& units = plan_member(json, "units");
  require<ArgumentError>(units.is_object(), "\"units\": expected an object");
  problem.units = {plan_word(units, "time"), plan_flag(units, "bytes")};
  read_sharding(json, problem.sharding);
  check_problem(problem);
  return problem;
}

void read_stages_of(const Json& json, SavedPlan& plan) {
  const Json& stages = plan_member(json, "stages");
  const auto ranks = static_cast<std::size_t>(plan.num_ranks());
  require<ArgumentError>(stages.is_array() && !stages.empty() && stages.size() <= kMostPlanStages &&
                             stages.size() % ranks == 0,
                         "\"stages\": expected an array with the same number of stages for each "
                         "of {} ranks",
                         ranks);
  const auto layers = static_cast<int64_t>(plan.problem.layers.size());
  for (std::size_t s = 0; s < stages.size(); ++s) {
    const Json& stage = stages[s];
    require<ArgumentError>(stage.is_object(), "\"stages\", entry {}: expected an object", s);
    const auto first = static_cast<int32_t>(plan_whole(stage, "begins_at_layer", 0, layers - 1));
    const bool ascends =
        plan.choice.begins.empty() ? first == 0 : first > plan.choice.begins.back();
    require<ArgumentError>(
        ascends,
        "\"stages\", entry {}: it begins at layer {}, but the first stage begins "
        "at 0 and every other one after the one before it",
        s, first);
    if (stage.contains("begins_at")) {
      const std::string& name = plan.problem.layers[static_cast<std::size_t>(first)].name;
      const std::string said = plan_word(stage, "begins_at");
      require<ArgumentError>(
          said == name, "\"stages\", entry {}: it begins at {}, but layer {} of \"costs\" is {}", s,
          describe_json(stage["begins_at"]), first, name.empty() ? "without a name" : name);
    }
    if (stage.contains("split_point")) {
      require<ArgumentError>(
          s > 0 && plan.model.split_points.size() == s - 1,
          "\"stages\", entry {}: every stage but the first has a split point, or "
          "none",
          s);
      plan.model.split_points.push_back(plan_word(stage, "split_point"));
    }
    plan.choice.begins.push_back(first);
    plan.choice.recompute.push_back(plan_flag(stage, "recompute"));
    const Rank rank = plan.schedule.placement().get_rank(StageId(static_cast<int32_t>(s)));
    const int64_t said_rank = plan_whole(stage, "rank", 0, INT32_MAX);
    require<ArgumentError>(said_rank == rank.value(),
                           "\"stages\", entry {}: its rank is {}, but in the schedule it is {}", s,
                           said_rank, rank.value());
  }
  require<ArgumentError>(
      plan.model.split_points.empty() || plan.model.split_points.size() + 1 == stages.size(),
      "\"stages\": every stage but the first has a split point, or none");
  plan.choice.stages_per_rank = static_cast<int32_t>(stages.size() / ranks);
}

// Reads the placement. The order of the ranks in a lap follows from the ranks of the first stages.
void read_placement_of(const Json& json, SavedPlan& plan) {
  const std::string style = plan_word(json, "placement");
  require<ArgumentError>(style == "loop" || style == "v",
                         "\"placement\": expected \"loop\" or \"v\", got {}",
                         describe_json(json["placement"]));
  plan.choice.placement = style == "v" ? PlacementStyle::kV : PlacementStyle::kLoop;
  const IndexedVector<StageId, Rank>& rank_of = plan.schedule.placement().ranks();
  const int32_t ranks = plan.num_ranks();
  std::vector<int32_t> order;
  for (StageId s(0); s.value() < ranks; ++s) order.push_back(rank_of[s].value());
  std::vector<int32_t> sorted = order;
  std::sort(sorted.begin(), sorted.end());
  const bool once = std::adjacent_find(sorted.begin(), sorted.end()) == sorted.end();
  require<ArgumentError>(once && sorted.front() == 0,
                         "\"schedule\": the first {} stages are not on different ranks", ranks);
  if (sorted != order) plan.choice.rank_order = std::move(order);
  require<ArgumentError>(place_stages(plan.choice, plan.num_ranks()) == plan.schedule.placement(),
                         "\"schedule\": its placement is not \"{}\"", style);
}

Schedule read_schedule_of(const Json& json, int32_t ranks, int32_t microbatches) {
  const Json& member = plan_member(json, "schedule");
  require<ArgumentError>(member.is_object(), "\"schedule\": expected an object");
  Schedule schedule = parse_json(json_to_text(member));
  require<ArgumentError>(schedule.level() == Level::kCompute,
                         "\"schedule\": a plan has a schedule of level compute");
  require<ArgumentError>(schedule.num_ranks() == ranks,
                         "\"schedule\" has {} ranks, but \"costs\" {}", schedule.num_ranks(),
                         ranks);
  require<ArgumentError>(schedule.num_microbatches() == microbatches,
                         "\"schedule\" has {} microbatches, but \"microbatches\" is {}",
                         schedule.num_microbatches(), microbatches);
  require<ArgumentError>(schedule.num_stages() > 0, "\"schedule\" has no stage");
  try {
    verify_or_throw(schedule, StageGraph::chain(schedule.num_stages()),
                    "\"schedule\" cannot be run", {.mode = VerifyMode::kTraining});
  } catch (const ScheduleError& error) {
    throw ArgumentError(error.what());
  }
  return schedule;
}

// Checks that time, memory and gathers are those of the schedule and the costs. If one was edited,
// the numbers would be wrong.
void check_prediction(const SavedPlan& plan) {
  const StageComposer composer(plan.problem, plan.objective);
  Evaluation result;
  try {
    result = evaluate_schedule(composer, plan.choice, plan.schedule);
  } catch (const ScheduleError& error) {
    throw ArgumentError(fmt::format("\"schedule\": {}", error.what()));
  }
  // A run adds UNSHARD and RESHARD again, from the lookahead, so the schedule must have the same.
  require<ArgumentError>(
      !plan.problem.sharding.has_gathers() ||
          plan.schedule == shard_stages(without_unshards(plan.schedule), plan.choice.most_active(),
                                        plan.lookahead),
      "\"schedule\": its UNSHARD and RESHARD are not those of \"unshard_lookahead\"");
  const double value = result.value(plan.objective);
  const auto close = [](double a, double b) {
    return std::abs(a - b) <= 1e-6 * std::max({std::abs(a), std::abs(b), 1e-9});
  };
  require<ArgumentError>(
      close(value, plan.predicted),
      "\"time\" is {}, but the schedule takes {} with the plan's costs; after an "
      "edit, plan again or run \"schedule\" alone",
      format_number(plan.predicted), format_number(value));
  require<ArgumentError>(plan.peaks.size() == result.peaks.size(),
                         "\"peaks\": expected {} numbers, got {}", result.peaks.size(),
                         plan.peaks.size());
  for (std::size_t r = 0; r < plan.peaks.size(); ++r) {
    require<ArgumentError>(close(plan.peaks[r], result.peaks[r]),
                           "\"peaks\" of rank {} is {}, but the schedule needs {}", r,
                           format_number(plan.peaks[r]), format_number(result.peaks[r]));
  }
}

}  // namespace

SavedPlan to_saved(const Plan& plan, PlannedModel model) {
  return {.problem = plan.problem,
          .choice = plan.best.choice,
          .schedule_name = plan.best.schedule,
          .schedule = plan.schedule,
          .objective = plan.objective,
          .predicted = plan.best.value,
          .peaks = plan.best.result.peaks,
          .bound = plan.best.bound.value,
          .any_split_bound = plan.any_split.value,
          .seed = plan.seed,
          .seconds = plan.seconds,
          .model = std::move(model),
          .lookahead = plan.best.lookahead};
}

std::string to_plan_file(const SavedPlan& plan) {
  Ordered json = {
      {"stagecraft_plan", kPlanVersion},
      {"ranks", plan.num_ranks()},
      {"microbatches", plan.problem.microbatches},
      {"placement", std::string(to_string(plan.choice.placement))},
      {"stages", stages_json(plan)},
      {"whole_backward", plan.choice.whole_backward},
      {"graph", plan.model.graph},
      {"objective", std::string(to_string(plan.objective))},
      {"time", plan.predicted},
      {"peaks", plan.peaks},
      {"bound", plan.bound},
      {"bound_any_split", plan.any_split_bound},
      {"seed", plan.seed},
      {"seconds", plan.seconds},
      {"units", {{"time", plan.problem.units.time}, {"bytes", plan.problem.units.bytes}}},
      {"schedule_name", plan.schedule_name},
      {"costs", ordered_json_from_text(to_layer_file(layer_file(plan.problem)))},
      {"schedule", ordered_json_from_text(to_json(plan.schedule))}};
  if (plan.problem.sharding.replicas > 1) json["sharding"] = sharding_json(plan);
  return json_to_text(json, {.repair = true}) + "\n";
}

namespace {

SavedPlan read_plan(std::string_view text) {
  const Json json = read_json(text);
  require<ArgumentError>(json.is_object() && json.contains("stagecraft_plan"),
                         "the text is not a plan: it has no member \"stagecraft_plan\"");
  require<ArgumentError>(json["stagecraft_plan"] == kPlanVersion,
                         "\"stagecraft_plan\": this reads version {}, got {}", kPlanVersion,
                         describe_json(json["stagecraft_plan"]));
  PlanProblem problem = read_problem(json);
  const int64_t said_ranks = plan_whole(json, "ranks", 1, INT32_MAX);
  require<ArgumentError>(said_ranks == problem.num_ranks(), "\"ranks\" is {}, but \"costs\" has {}",
                         said_ranks, problem.num_ranks());
  Schedule schedule = read_schedule_of(json, problem.num_ranks(), problem.microbatches);
  SavedPlan plan{.problem = std::move(problem),
                 .choice = {},
                 .schedule_name = plan_word(json, "schedule_name"),
                 .schedule = std::move(schedule)};
  read_stages_of(json, plan);
  require<ArgumentError>(plan.schedule.num_stages() == plan.choice.num_stages(),
                         "\"schedule\" has {} stages, but \"stages\" {}",
                         plan.schedule.num_stages(), plan.choice.num_stages());
  plan.choice.whole_backward = plan_flag(json, "whole_backward");
  read_placement_of(json, plan);
  read_gathers(json, plan);
  const std::string objective = plan_word(json, "objective");
  require<ArgumentError>(objective == "step" || objective == "span",
                         "\"objective\": expected \"step\" or \"span\", got {}",
                         describe_json(json["objective"]));
  plan.objective = objective == "span" ? Objective::kSpan : Objective::kStep;
  plan.predicted = plan_number(json, "time");
  plan.bound = plan_number(json, "bound");
  plan.any_split_bound = plan_number(json, "bound_any_split");
  plan.seconds = plan_number(json, "seconds");
  plan.seed = static_cast<uint64_t>(plan_whole(json, "seed", 0, INT64_MAX));
  plan.model.graph = plan_word(json, "graph");
  const Json& peaks = plan_member(json, "peaks");
  require<ArgumentError>(peaks.is_array(), "\"peaks\": expected an array of numbers");
  for (const Json& peak : peaks) {
    require<ArgumentError>(peak.is_number(), "\"peaks\": expected numbers, got {}",
                           describe_json(peak));
    plan.peaks.push_back(peak.get<double>());
  }
  return plan;
}

}  // namespace

SavedPlan parse_plan_file(std::string_view text) {
  SavedPlan plan = read_plan(text);
  check_prediction(plan);
  return plan;
}

CostModel parse_plan_costs(std::string_view text) {
  const SavedPlan plan = read_plan(text);
  CostModel costs =
      choice_costs(StageComposer(plan.problem, plan.objective), plan.choice, plan.schedule);
  const std::vector<PlanRank>& ranks = plan.problem.ranks;
  const bool alike = std::all_of(ranks.begin(), ranks.end(), [&](const PlanRank& rank) {
    return rank.memory == ranks.front().memory;
  });
  if (alike) costs.memory_cap = ranks.front().memory;
  return costs;
}

SavedPlan read_plan_file(const std::string& path) {
  const std::string text = read_file(path);
  try {
    return parse_plan_file(text);
  } catch (const Error& error) {
    throw ArgumentError(fmt::format("{}: {}", path, error.what()));
  }
}

bool looks_like_plan(std::string_view text) {
  const std::size_t first = text.find_first_not_of(" \t\r\n");
  return first != std::string_view::npos && text[first] == '{' &&
         text.find("\"stagecraft_plan\"") != std::string_view::npos;
}

void require_plan_for(const SavedPlan& plan, int32_t ranks, std::string_view graph) {
  require<ArgumentError>(plan.num_ranks() == ranks, "the plan is for {}, but there {} {}",
                         format_count(plan.num_ranks(), "rank"), ranks == 1 ? "is" : "are", ranks);
  require<ArgumentError>(graph.empty() || plan.model.graph.empty() || plan.model.graph == graph,
                         "the plan was made for a different model: its graph has the checksum {}, "
                         "this one {}",
                         plan.model.graph, graph);
}

std::string graph_checksum(std::string_view graph_text) {
  const std::string digest = detail::sha256(graph_text);
  std::string text;
  for (std::size_t i = 0; i < 8; ++i) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(digest[i]));
  }
  return text;
}

}  // namespace stagecraft
