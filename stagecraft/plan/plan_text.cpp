#include "stagecraft/plan/plan_text.h"

#include <algorithm>
#include <cmath>
#include <string_view>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "stagecraft/base/text_table.h"

namespace stagecraft {
namespace {

std::string describe_layers(const PlanProblem& problem) {
  // Layers that follow each other and have the same costs are named together.
  std::vector<std::string> parts;
  for (std::size_t i = 0; i < problem.layers.size();) {
    std::size_t next = i + 1;
    PlanLayer like = problem.layers[i];
    while (next < problem.layers.size()) {
      like.name = problem.layers[next].name;
      if (!(like == problem.layers[next])) break;
      ++next;
    }
    const std::string& name = problem.layers[i].name;
    if (next - i > 1) {
      parts.push_back(fmt::format("{} alike", next - i));
    } else {
      parts.push_back(name.empty() ? "1" : name);
    }
    i = next;
  }
  if (parts.size() > 6 || parts.size() == problem.layers.size()) return {};
  return fmt::format(" ({})", fmt::join(parts, ", "));
}

std::string schedule_text(const PlanRow& row) {
  if (!row.split.empty()) return fmt::format("{}, {}", row.schedule, row.split);
  return row.built_in && row.schedule == "1F1B" ? row.schedule + ", best split" : row.schedule;
}

std::string recompute_text(const PlanChoice& choice) {
  const auto count = std::count(choice.recompute.begin(), choice.recompute.end(), true);
  if (count == 0) return "-";
  if (static_cast<std::size_t>(count) == choice.recompute.size()) return "all";
  return fmt::format("{} of {}", count, choice.recompute.size());
}

std::string replicas_text(const PlanSharding& sharding) {
  if (sharding.replicas == 1) return {};
  if (sharding.kind == ShardKind::kNone) return fmt::format(", {} replicas", sharding.replicas);
  return fmt::format(
      ", {} replicas that shard {}", sharding.replicas,
      sharding.kind == ShardKind::kOptimizer ? "the optimizer's state" : to_string(sharding.kind));
}

std::string peak_text(const PlanProblem& problem, const Evaluation& result) {
  const auto rank = static_cast<std::size_t>(result.fullest_rank);
  const std::string peak = format_memory(problem, result.peaks[rank]);
  const std::optional<double>& memory = problem.ranks[rank].memory;
  if (!memory) return fmt::format("{}, rank {}", peak, rank);
  return fmt::format("{} of {}, rank {}", peak, format_memory(problem, *memory), rank);
}

std::string gap_text(double gap) {
  return fmt::format("{:.2f} %", 100 * std::max(0.0, gap));
}

std::string text_of(const PlanTable& table, std::size_t text_columns) {
  TextTable text(table.header, text_columns);
  for (const std::vector<std::string>& row : table.rows) text.add(row);
  return text.to_string();
}

bool is_chosen(const Plan& plan, const PlanRow& row) {
  return row.choice == plan.best.choice && row.schedule == plan.best.schedule &&
         row.built_in == plan.best.built_in && row.split == plan.best.split;
}

}  // namespace

std::string format_time(const PlanProblem& problem, double time) {
  const bool is_whole = time >= 1000 && time < 1e15;
  const std::string number = is_whole ? fmt::format("{:.0f}", time) : format_number(time);
  return problem.units.time.empty() ? number : fmt::format("{} {}", number, problem.units.time);
}

std::string plan_headline(const Plan& plan) {
  const PlanProblem& problem = plan.problem;
  return fmt::format("{}{}, {}, {} microbatch{}{}. All work shared out evenly: {}.\n",
                     format_count(static_cast<long long>(problem.layers.size()), "layer"),
                     describe_layers(problem), format_count(problem.num_ranks(), "rank"),
                     problem.microbatches, problem.microbatches == 1 ? "" : "es",
                     replicas_text(problem.sharding),
                     format_time(problem, plan.any_split.even_share));
}

PlanTable plan_rows(const Plan& plan, std::size_t rows) {
  PlanTable table{{"", "stages", "placement", "schedule", "recompute", "time", "vs best", "bound",
                   "gap", "bubble", "peak memory"},
                  {}};
  const PlanProblem& problem = plan.problem;
  constexpr std::ptrdiff_t kRecompute = 4;
  const bool has_gathers = problem.sharding.has_gathers();
  if (has_gathers) table.header.insert(table.header.begin() + kRecompute + 1, "unsharded");
  // The rows that help to compare come first: the best ones, the chosen one and equal layers.
  std::vector<const PlanRow*> shown;
  for (const PlanRow& row : plan.rows) {
    const bool kept = is_chosen(plan, row) || row.split == "equal layers";
    if (kept || shown.size() < rows) shown.push_back(&row);
  }
  while (shown.size() > rows && rows > 1) {
    const auto least = std::find_if(shown.rbegin(), shown.rend(), [&](const PlanRow* row) {
      return !is_chosen(plan, *row) && row->split != "equal layers";
    });
    if (least == shown.rend()) break;
    shown.erase(std::next(least).base());
  }
  for (const PlanRow* row : shown) {
    const double gap = row->bound.value > 0 ? row->value / row->bound.value - 1 : 0;
    const double extra = plan.best.value > 0 ? row->value / plan.best.value - 1 : 0;
    table.rows.push_back(
        {is_chosen(plan, *row) ? "*" : "", std::to_string(row->choice.num_stages()),
         std::string(to_string(row->choice.placement)), schedule_text(*row),
         recompute_text(row->choice), format_time(problem, row->value),
         fmt::format("{:+.2f} %", 100 * extra + 0.0), format_time(problem, row->bound.value),
         gap_text(gap), fmt::format("{:.1f} %", 100 * row->result.bubble),
         peak_text(problem, row->result)});
    if (has_gathers) {
      std::vector<std::string>& cells = table.rows.back();
      cells.insert(cells.begin() + kRecompute + 1, std::to_string(row->choice.most_active()));
    }
  }
  return table;
}

std::string plan_table(const Plan& plan, std::size_t rows) {
  // Text and numbers alternate, so columns are padded here.
  PlanTable table = plan_rows(plan, rows);
  for (const std::size_t column :
       {std::size_t{2}, std::size_t{3}, std::size_t{4}, table.header.size() - 1}) {
    std::size_t width = table.header[column].size();
    for (const auto& row : table.rows) width = std::max(width, row[column].size());
    table.header[column].resize(width, ' ');
    for (auto& row : table.rows) row[column].resize(width, ' ');
  }
  return text_of(table, 1);
}

std::string plan_unfit(const Plan& plan) {
  if (plan.unfit.empty()) return {};
  std::string text = "These do not fit:\n";
  for (const UnfitRow& row : plan.unfit) {
    text += fmt::format("  {}, {} a rank: {}\n", row.schedule,
                        format_count(row.stages_per_rank, "stage"), row.reason);
  }
  return text;
}

namespace {

/// If parameters are sharded: adds the memory that a stage holds all the time, and the memory that
/// it holds in addition.
void add_gathers(const Plan& plan, const StageComposer& composer, PlanTable& table) {
  constexpr std::ptrdiff_t kWeights = 7;
  const PlanProblem& problem = plan.problem;
  const PlanChoice& choice = plan.best.choice;
  const IndexedVector<StageId, HeldMemory> stages = composer.held_by_stage(choice);
  const auto insert = [&](std::vector<std::string>& row, std::vector<std::string> cells) {
    row.insert(row.begin() + kWeights + 1, cells.begin(), cells.end());
  };
  insert(table.header, {"gathered", "gradients", "G"});
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    const HeldMemory& held = stages[StageId(static_cast<int32_t>(s))];
    table.rows[s][kWeights] = format_memory(problem, held.pieces);
    insert(table.rows[s],
           {format_memory(problem, held.gathered), format_memory(problem, held.gradients),
            format_number(composer.gather(choice.begins[s], composer.end_of(choice, s)))});
  }
}

}  // namespace

PlanTable stage_rows(const Plan& plan) {
  PlanTable table{{"stage", "rank", "begins at", "layers", "F", "I", "W", "weights", "activations",
                   "sends", "recompute"},
                  {}};
  const PlanProblem& problem = plan.problem;
  const StageComposer composer(problem, plan.objective);
  const PlanChoice& choice = plan.best.choice;
  const ScheduleProblem stages = composer.compose(choice);
  for (int32_t s = 0; s < choice.num_stages(); ++s) {
    const auto at = static_cast<std::size_t>(s);
    const int32_t first = choice.begins[at];
    const int32_t end = s + 1 < choice.num_stages() ? choice.begins[at + 1] : composer.num_layers();
    const StageLoad& load = stages.stages[at];
    const Rank rank = stages.placement.ranks()[StageId(s)];
    const double speed = problem.ranks[rank.position()].speed;
    const std::string& name = problem.layers[static_cast<std::size_t>(first)].name;
    const bool whole = !load.is_split;
    const double backward = load.backward.value_or(load.backward_input + load.backward_weight);
    table.rows.push_back(
        {std::to_string(s), to_string(rank),
         name.empty() ? fmt::format("layer {}", first) : fmt::format("{} ({})", name, first),
         std::to_string(end - first), format_number(load.forward / speed),
         whole ? fmt::format("B {}", format_number(backward / speed))
               : format_number(load.backward_input / speed),
         whole ? "-" : format_number(load.backward_weight / speed),
         format_memory(problem, composer.fixed_memory(first, end)),
         format_memory(problem, load.memory_forward),
         s + 1 < choice.num_stages() ? format_memory(problem, stages.output_bytes[at]) : "-",
         choice.recompute[at] ? "yes" : "-"});
  }
  if (problem.sharding.has_gathers()) add_gathers(plan, composer, table);
  return table;
}

std::string plan_stages(const Plan& plan) {
  PlanTable table = stage_rows(plan);
  if (!plan.best.choice.recomputes()) {
    table.header.pop_back();
    for (auto& row : table.rows) row.pop_back();
  }
  return text_of(table, 0);
}

std::string plan_bounds(const Plan& plan) {
  const PlanProblem& problem = plan.problem;
  std::string text =
      fmt::format("Bound: {} No order of these stages can take less than {}",
                  to_sentence(plan.best.bound), format_time(problem, plan.best.bound.value));
  text += fmt::format("; no split of this model for {} less than {}.\n",
                      format_count(problem.num_ranks(), "rank"),
                      format_time(problem, plan.any_split.value));
  text += fmt::format("Gap: {} above the bound for these stages, {} above that for any split.\n",
                      gap_text(plan.gap()), gap_text(plan.any_split_gap()));
  if (problem.sharding.has_gathers()) {
    text += fmt::format(
        "Weights: at most {} of a rank unsharded at a time, lookahead {}. All ranks together wait "
        "{} "
        "for weights; the bounds do not count gathers.\n",
        format_count(plan.best.choice.most_active(), "stage"), fmt::join(plan.best.lookahead, ","),
        format_time(problem, plan.best.result.exposed_gather));
  }
  if (plan.interrupted) text += "The search was interrupted: this is the best plan so far.\n";
  return text;
}

std::string curve_sentence(const Plan& plan, const std::vector<CurvePoint>& curve) {
  const PlanProblem& problem = plan.problem;
  if (curve.empty()) return {};
  const double here = plan.best.value;
  double memory = 0;
  for (const PlanRank& rank : problem.ranks) memory = std::max(memory, rank.memory.value_or(0));
  std::vector<std::string> parts;
  double last = here;
  for (const CurvePoint& point : curve) {
    if (point.memory <= memory || point.value >= last * (1 - 5e-4)) continue;
    parts.push_back(fmt::format("{} a rank gives {} ({:+.1f} %)",
                                format_memory(problem, point.memory),
                                format_time(problem, point.value), 100 * (point.value / here - 1)));
    last = point.value;
  }
  std::string text;
  if (memory > 0) {
    text = parts.empty() ? "More memory gains nothing."
                         : fmt::format("More memory: {}; beyond that nothing is gained.",
                                       fmt::join(parts, ", "));
    text += ' ';
  }
  return fmt::format("{}Least memory: {} a rank.\n", text,
                     format_memory(problem, curve.front().memory));
}

std::string curve_table(const Plan& plan, const std::vector<CurvePoint>& curve) {
  const PlanProblem& problem = plan.problem;
  TextTable table({"memory a rank", "time", "vs most", "bound", "gap", "stages a rank",
                   "recomputed", "schedule"});
  const double fastest = curve.empty() ? 1 : curve.back().value;
  for (const CurvePoint& point : curve) {
    table.add({format_memory(problem, point.memory), format_time(problem, point.value),
               fmt::format("{:+.1f} %", 100 * (point.value / fastest - 1)),
               format_time(problem, point.bound),
               gap_text(point.bound > 0 ? point.value / point.bound - 1 : 0),
               std::to_string(point.stages_per_rank), std::to_string(point.recomputed),
               point.schedule});
  }
  return table.to_string();
}

std::string to_text(const Plan& plan, std::size_t rows) {
  std::string text = plan_headline(plan) + '\n' + plan_table(plan, rows);
  const std::string unfit = plan_unfit(plan);
  if (!unfit.empty()) text += '\n' + unfit;
  return text + '\n' + plan_stages(plan) + '\n' + plan_bounds(plan);
}

}  // namespace stagecraft
