#include "stagecraft/plan/plan_problem.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string_view>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {
namespace {

std::string layer_name(const PlanProblem& problem, std::size_t layer) {
  const std::string& name = problem.layers[layer].name;
  return name.empty() ? fmt::format("layer {}", layer)
                      : fmt::format("layer {} ({})", layer, quote(name));
}

bool is_cost(double value) {
  return std::isfinite(value) && value >= 0;
}

void check_layer(const PlanProblem& problem, std::size_t index) {
  const PlanLayer& layer = problem.layers[index];
  const StageCost& cost = layer.cost;
  const std::pair<const char*, double> costs[] = {{"F", cost.forward},
                                                  {"I", cost.backward_input},
                                                  {"W", cost.backward_weight},
                                                  {"FULL", cost.full_backward()},
                                                  {"RF", layer.recompute.value_or(0)},
                                                  {"MF", cost.memory_forward},
                                                  {"MW", cost.memory_freed_by_weight},
                                                  {"BYTES", layer.output_bytes},
                                                  {"WEIGHTS", layer.weights},
                                                  {"STATE", layer.state},
                                                  {"GRADS", layer.gradients.value_or(0)},
                                                  {"G", layer.gather.value_or(0)},
                                                  {"PF", layer.peak_forward},
                                                  {"PI", layer.peak_input},
                                                  {"PW", layer.peak_weight}};
  for (const auto& [key, value] : costs) {
    require<ArgumentError>(is_cost(value), "{}: {} is {}; expected a finite number of at least 0",
                           layer_name(problem, index), key, value);
  }
  const double freed = cost.memory_freed_by_input + cost.memory_freed_by_weight;
  const double slack = 1e-9 * std::max(1.0, cost.memory_forward);
  require<ArgumentError>(
      std::isfinite(cost.memory_freed_by_input) && std::abs(freed - cost.memory_forward) <= slack,
      "{}: I frees {} and W {}, but F takes {}; memory must be free after W",
      layer_name(problem, index), cost.memory_freed_by_input, cost.memory_freed_by_weight,
      cost.memory_forward);
  require<ArgumentError>(layer.gradients.value_or(0) <= layer.weights,
                         "{}: GRADS is {}, but it is a part of WEIGHTS, which is {}",
                         layer_name(problem, index), layer.gradients.value_or(0), layer.weights);
}

void check_sharding(const PlanProblem& problem) {
  const PlanSharding& sharding = problem.sharding;
  require<ArgumentError>(sharding.replicas > 0, "expected at least 1 replica, got {}",
                         sharding.replicas);
  if (sharding.kind == ShardKind::kNone) return;
  const std::string_view kind = to_string(sharding.kind);
  require<ArgumentError>(sharding.replicas > 1,
                         "replicas divide {} among themselves, but there is one replica", kind);
  if (sharding.kind == ShardKind::kOptimizer) {
    const bool any = std::any_of(problem.layers.begin(), problem.layers.end(),
                                 [](const PlanLayer& layer) { return layer.state > 0; });
    require<ArgumentError>(any, "sharding the optimizer's state needs STATE, and no layer has it");
    return;
  }
  for (std::size_t i = 0; i < problem.layers.size(); ++i) {
    const PlanLayer& layer = problem.layers[i];
    if (layer.weights == 0) continue;
    require<ArgumentError>(layer.gradients.has_value(),
                           "{}: sharding {} needs GRADS, the part of WEIGHTS that is gradients",
                           layer_name(problem, i), kind);
    require<ArgumentError>(sharding.kind != ShardKind::kParameters || layer.gather.has_value(),
                           "{}: sharding {} needs G, the time to gather the layer's weights",
                           layer_name(problem, i), kind);
  }
  if (sharding.kind != ShardKind::kParameters) return;
  require<ArgumentError>(sharding.max_active_stages.value_or(1) >= 1,
                         "expected at least 1 active stage, got {}",
                         sharding.max_active_stages.value_or(1));
  if (sharding.lookahead) {
    resolve_lookahead(*sharding.lookahead, problem.num_ranks(),
                      sharding.max_active_stages.value_or(INT32_MAX));
  }
}

}  // namespace

std::vector<PlanRank> same_ranks(int32_t ranks, std::optional<double> memory) {
  require<ArgumentError>(ranks > 0, "expected at least 1 rank, got {}", ranks);
  return std::vector<PlanRank>(static_cast<std::size_t>(ranks), PlanRank{.memory = memory});
}

void check_problem(const PlanProblem& problem) {
  require<ArgumentError>(!problem.layers.empty(), "a plan needs at least one layer");
  require<ArgumentError>(problem.layers.size() <= kMostLayers,
                         "a plan has at most {} layers, got {}", kMostLayers,
                         problem.layers.size());
  require<ArgumentError>(!problem.ranks.empty(), "a plan needs at least one rank");
  require<ArgumentError>(problem.microbatches > 0, "a plan needs at least one microbatch, got {}",
                         problem.microbatches);
  for (std::size_t i = 0; i < problem.layers.size(); ++i) check_layer(problem, i);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    const PlanRank& rank = problem.ranks[r];
    require<ArgumentError>(std::isfinite(rank.speed) && rank.speed > 0,
                           "rank {}: SPEED is {}; expected a finite number above 0", r, rank.speed);
    require<ArgumentError>(!rank.memory || (is_cost(*rank.memory) && *rank.memory > 0),
                           "rank {}: its memory is {}; expected a finite number above 0", r,
                           rank.memory.value_or(0));
  }
  require<ArgumentError>(problem.sizes.empty() ||
                             problem.sizes.size() == static_cast<std::size_t>(problem.microbatches),
                         "there are {} sizes for {} microbatches", problem.sizes.size(),
                         problem.microbatches);
  for (std::size_t m = 0; m < problem.sizes.size(); ++m) {
    require<ArgumentError>(std::isfinite(problem.sizes[m]) && problem.sizes[m] > 0,
                           "the size of microbatch {} is {}; expected a finite number above 0", m,
                           problem.sizes[m]);
  }
  require<ArgumentError>(is_cost(problem.link.latency), "the latency is {}; expected at least 0",
                         problem.link.latency);
  require<ArgumentError>(is_cost(problem.input_bytes), "INPUT_BYTES is {}; expected at least 0",
                         problem.input_bytes);
  const auto check_bandwidth = [](const LinkCost& link) {
    require<ArgumentError>(
        !link.bandwidth || (std::isfinite(*link.bandwidth) && *link.bandwidth > 0),
        "the bandwidth is {}; expected a finite number above 0", link.bandwidth.value_or(0));
  };
  check_bandwidth(problem.link);
  for (const CostModel::PerLink& link : problem.links) {
    require<ArgumentError>(link.from.value() < problem.num_ranks() &&
                               link.to.value() < problem.num_ranks() && is_cost(link.cost.latency),
                           "the link from rank {} to rank {}: there are {} ranks, and the latency "
                           "must be at least 0",
                           link.from.value(), link.to.value(), problem.num_ranks());
    check_bandwidth(link.cost);
  }
  check_sharding(problem);
}

}  // namespace stagecraft
