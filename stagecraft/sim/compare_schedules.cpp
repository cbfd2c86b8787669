#include "stagecraft/sim/compare_schedules.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "stagecraft/base/error.h"

namespace stagecraft {
namespace {

// The reason without the schedule's name, which a list of reasons shows anyway.
std::string without_name(std::string_view message, std::string_view name) {
  const std::string prefix = std::string(name) + ": ";
  return std::string(message.substr(message.starts_with(prefix) ? prefix.size() : 0));
}

std::vector<int32_t> stages_to_try(const ScheduleKind& kind, std::optional<int32_t> given) {
  std::vector<int32_t> all = {kind.default_stages_per_rank};
  if (given && *given != all.front()) all.push_back(*given);
  return all;
}

/// The schedule. Nothing, with the reason, if it cannot be built.
std::optional<Schedule> try_build(const ScheduleKind& kind, const ScheduleShape& shape,
                                  std::string& reason) {
  try {
    return kind.build(shape);
  } catch (const Error& error) {
    reason = error.what();
    return std::nullopt;
  }
}

}  // namespace

CostModel divide_costs(CostModel costs, int32_t parts) {
  if (!costs.stages.empty() || !costs.microbatches.empty() || costs.output_bytes.size() > 1 ||
      costs.weights.size() > 1 || costs.gather.size() > 1 || costs.gathered.size() > 1) {
    throw ArgumentError(
        "compare takes one cost for all stages and microbatches, since schedules differ in stages; "
        "only links may differ");
  }
  StageCost& stage = costs.stage;
  for (double* cost :
       {&stage.forward, &stage.backward_input, &stage.backward_weight, &stage.memory_forward,
        &stage.memory_freed_by_input, &stage.memory_freed_by_weight}) {
    *cost /= parts;
  }
  if (stage.backward) *stage.backward /= parts;
  for (std::vector<double>* list : {&costs.weights, &costs.gather, &costs.gathered}) {
    for (double& number : *list) number /= parts;
  }
  return costs;
}

ScheduleComparison compare_schedules(const ScheduleShape& shape, const RunSchedule& run) {
  ScheduleComparison comparison;
  for (const ScheduleKind& kind : schedule_kinds()) {
    if (!kind.has_backward) continue;
    bool fits = false;
    for (const int32_t stages : stages_to_try(kind, shape.stages_per_rank)) {
      std::string reason;
      const std::optional<Schedule> schedule = try_build(
          kind,
          {.ranks = shape.ranks, .microbatches = shape.microbatches, .stages_per_rank = stages},
          reason);
      if (schedule) {
        try {
          Simulation result = run(kind.name, *schedule, stages);
          result.timeline = {};
          result.memory = {};
          result.critical_path = {};
          comparison.schedules.push_back({std::string(kind.name), stages, std::move(result)});
          fits = true;
          continue;
        } catch (const ScheduleError& error) {
          reason = error.what();
        }
      }
      if (!fits) {
        comparison.unfit.push_back(
            {std::string(kind.name), stages, without_name(reason, kind.name)});
      }
    }
  }
  std::stable_sort(comparison.schedules.begin(), comparison.schedules.end(),
                   [](const ComparedSchedule& a, const ComparedSchedule& b) {
                     return a.result.makespan < b.result.makespan;
                   });
  return comparison;
}

}  // namespace stagecraft
