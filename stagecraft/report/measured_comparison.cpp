#include "stagecraft/report/measured_comparison.h"

#include <algorithm>
#include <cstddef>
#include <numeric>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/report/resplit.h"
#include "stagecraft/runtime/memory_estimate.h"
#include "stagecraft/runtime/record/report.h"
#include "stagecraft/runtime/record/stage_times.h"
#include "stagecraft/schedule/passes/lower.h"

namespace stagecraft {
namespace {

double mean(const std::vector<double>& values) {
  return values.empty() ? 0
                        : std::accumulate(values.begin(), values.end(), 0.0) /
                              static_cast<double>(values.size());
}

struct Costs {
  std::vector<StageCost> stages;
  bool has_backward = true;
  bool has_halves = false;  // some B was divided in two
  bool has_sums = false;    // some B is I + W
};

Costs mean_costs(const Recording& recording) {
  Costs costs;
  for (const StageTimes& times : stage_times(recording)) {
    StageCost& cost = costs.stages.emplace_back();
    cost.forward = mean(times.forward);
    cost.backward_input = mean(times.backward_input);
    cost.backward_weight = mean(times.backward_weight);
    if (!times.backward.empty()) cost.backward = mean(times.backward);
    const bool is_split = !times.backward_input.empty() && !times.backward_weight.empty();
    if (!is_split && cost.backward) {
      cost.backward_input = cost.backward_weight = *cost.backward / 2;
      costs.has_halves = true;
    } else if (is_split && !cost.backward) {
      costs.has_sums = true;
    } else if (!is_split) {
      costs.has_backward = false;
    }
  }
  return costs;
}

bool is_chain(const StageGraph& graph) {
  return graph == StageGraph::chain(graph.num_stages());
}

class Comparer {
 public:
  Comparer(const Recording& recording, Costs costs, std::span<const StageMemory> memory)
      : recording_(recording), costs_(std::move(costs)), memory_(memory) {}

  Simulation run(const Schedule& schedule) {
    const bool same_split = schedule.num_stages() == recording_.schedule.num_stages();
    if (!same_split) is_resplit_ = true;
    const StageGraph graph =
        same_split ? recording_.graph : StageGraph::chain(schedule.num_stages());
    CostModel model;
    model.stages = resplit_costs(costs_.stages, schedule.num_stages());
    Simulation result = simulate(schedule, model, graph);
    result.peak_memory = 0;
    if (memory_.empty()) return result;
    const Schedule lowered =
        schedule.level() == Level::kLowered ? schedule : lower(schedule, graph);
    const MemoryEstimate estimate =
        estimate_memory(lowered, resplit_memory(memory_, schedule.num_stages()));
    for (std::size_t r = 0; r < estimate.ranks.size(); ++r) {
      result.ranks[r].peak_memory = static_cast<double>(estimate.ranks[r].total());
    }
    result.peak_memory = static_cast<double>(estimate.peak());
    return result;
  }

  std::vector<std::string> assumptions() const {
    std::vector<std::string> all = {
        "Every microbatch of a stage takes the mean time of this step; transfers take no time."};
    if (costs_.has_halves) {
      all.push_back(
          "The step ran full backwards (B): if a schedule splits them, the gradients of inputs and "
          "of weights are assumed to cost half each.");
    }
    if (costs_.has_sums) {
      all.push_back(
          "The step ran split backwards: a full one is assumed to cost the sum of its parts.");
    }
    if (is_resplit_) {
      all.push_back(fmt::format(
          "This run has {} stages. For schedules with a different number, the cost of each stage "
          "is spread evenly over its part of the model, and the parts of a new stage are added.{}",
          recording_.schedule.num_stages(),
          is_chain(recording_.graph) ? "" : " Skip connections are left out there."));
    }
    if (!memory_.empty()) {
      all.push_back(
          "Peak memory is that of the rank with the most, estimated from the memory of one "
          "microbatch of each stage; values at the boundaries of new stages are approximate.");
    }
    return all;
  }

 private:
  const Recording& recording_;
  Costs costs_;
  std::span<const StageMemory> memory_;
  bool is_resplit_ = false;
};

}  // namespace

MeasuredComparison compare_measured(const Recording& recording, const std::string& schedule_name,
                                    std::span<const StageMemory> memory) {
  const Schedule& own = recording.schedule;
  if (make_report(recording).not_run > 0 || own.num_stages() == 0) {
    return {.assumptions = {"The step did not complete, so there are no costs to compare with."}};
  }
  Costs costs = mean_costs(recording);
  if (!costs.has_backward) {
    return {.assumptions = {"The step had no backward, so schedules that train are not compared."}};
  }
  Comparer comparer(recording, std::move(costs), memory);
  ScheduleShape shape{.ranks = own.num_ranks(), .microbatches = own.num_microbatches()};
  const bool is_even = own.num_stages() % own.num_ranks() == 0;
  const int32_t per_rank = is_even ? own.num_stages() / own.num_ranks() : 0;
  if (is_even) shape.stages_per_rank = per_rank;
  MeasuredComparison result;
  ScheduleComparison& comparison = result.comparison;
  comparison = compare_schedules(shape, [&](std::string_view, const Schedule& schedule, int32_t) {
    return comparer.run(schedule);
  });
  const bool is_there = std::any_of(
      comparison.schedules.begin(), comparison.schedules.end(), [&](const ComparedSchedule& one) {
        return one.name == schedule_name && one.stages_per_rank == per_rank;
      });
  if (!is_there) {
    Simulation run = comparer.run(own);
    run.timeline = {};
    run.memory = {};
    run.critical_path = {};
    const auto place = std::find_if(
        comparison.schedules.begin(), comparison.schedules.end(),
        [&](const ComparedSchedule& one) { return one.result.makespan > run.makespan; });
    comparison.schedules.insert(place, {schedule_name, per_rank, std::move(run)});
  }
  result.assumptions = comparer.assumptions();
  return result;
}

}  // namespace stagecraft
