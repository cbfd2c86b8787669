#include "stagecraft/sim/cost_model.h"

#include <cmath>

#include "stagecraft/base/check.h"

namespace stagecraft {
namespace {

void check_number(double value, std::string_view what) {
  require<ArgumentError>(std::isfinite(value) && value >= 0,
                         "costs: {} must be a number of at least 0, got {}", what, value);
}

void check_stage(const StageCost& cost, const std::string& what) {
  check_number(cost.forward, "F" + what);
  check_number(cost.backward_input, "I" + what);
  check_number(cost.backward_weight, "W" + what);
  check_number(cost.full_backward(), "FULL" + what);
  check_number(cost.memory_forward, "MF" + what);
  check_number(cost.memory_freed_by_input, "MI" + what);
  check_number(cost.memory_freed_by_weight, "MW" + what);
  check_number(cost.memory_sent, "MS" + what);
}

void check_link(const LinkCost& cost, const std::string& what) {
  check_number(cost.latency, "C" + what);
  if (!cost.bandwidth) return;
  check_number(*cost.bandwidth, "BW" + what);
  require<ArgumentError>(*cost.bandwidth > 0, "costs: BW{} must be more than 0", what);
}

void check_index(int32_t index, int32_t count, std::string_view kind, std::string_view what) {
  require<ArgumentError>(index >= 0 && index < count, "costs: {}: there is no {} {}, only {}", what,
                         kind, index, count);
}

void check_list(const std::vector<double>& values, int32_t stages, std::string_view what) {
  require<ArgumentError>(values.size() <= static_cast<std::size_t>(stages),
                         "costs: {} has {} entries for {} stages", what, values.size(), stages);
  for (const double value : values) check_number(value, what);
}

}  // namespace

void check_costs(const CostModel& costs, int32_t ranks, int32_t stages, int32_t microbatches) {
  check_stage(costs.stage, "");
  require<ArgumentError>(costs.stages.size() <= static_cast<std::size_t>(stages),
                         "costs: there are {} entries for {} stages", costs.stages.size(), stages);
  for (std::size_t s = 0; s < costs.stages.size(); ++s) {
    check_stage(costs.stages[s], fmt::format(" of stage {}", s));
  }
  for (const CostModel::PerMicrobatch& entry : costs.microbatches) {
    check_index(entry.stage.value(), stages, "stage", "microbatches");
    check_index(entry.microbatch.value(), microbatches, "microbatch", "microbatches");
    check_stage(entry.cost, fmt::format(" of stage {}, microbatch {}", entry.stage.value(),
                                        entry.microbatch.value()));
  }
  check_link(costs.link, "");
  for (const CostModel::PerLink& entry : costs.links) {
    check_index(entry.from.value(), ranks, "rank", "links");
    check_index(entry.to.value(), ranks, "rank", "links");
    check_link(entry.cost,
               fmt::format(" from rank {} to {}", entry.from.value(), entry.to.value()));
  }
  check_list(costs.output_bytes, stages, "BYTES");
  check_list(costs.weights, stages, "WEIGHTS");
  check_list(costs.gather, stages, "G");
  check_list(costs.gathered, stages, "MG");
  if (costs.memory_cap) check_number(*costs.memory_cap, "CAP");
  check_number(costs.overlap, "OVERLAP");
  require<ArgumentError>(costs.overlap <= 1, "costs: OVERLAP is at most 1, got {}", costs.overlap);
}

}  // namespace stagecraft
