#include "stagecraft/runtime/planned_pipeline.h"

#include <cstddef>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {

Split planned_split(const Plan& plan) {
  Split split;
  for (std::size_t s = 1; s < plan.best.choice.begins.size(); ++s) {
    const auto layer = static_cast<std::size_t>(plan.best.choice.begins[s]);
    const std::string& name = plan.problem.layers[layer].name;
    require<ArgumentError>(!name.empty(),
                           "stage {} of the plan begins at layer {}, which has no name", s, layer);
    split.points.emplace_back(name, SplitPoint::kBeginning);
  }
  if (split.points.empty()) split.policy = [](const Graph&) { return SplitPositions(); };
  return split;
}

PipelineOptions planned_options(const Plan& plan, PipelineOptions options) {
  options.source = ScheduleSource::fixed(plan.schedule);
  if (plan.problem.sharding.replicas > 1) {
    options.replicas = plan.problem.sharding.replicas;
    options.shard = plan.problem.sharding.kind;
  }
  return options;
}

void set_planned_recompute(PipelineBase& pipeline, const Plan& plan) {
  for (std::size_t s = 0; s < plan.best.choice.recompute.size(); ++s) {
    if (!plan.best.choice.recompute[s]) continue;
    pipeline.stage(StageId(static_cast<int32_t>(s))).set_recompute(true);
  }
}

}  // namespace stagecraft
