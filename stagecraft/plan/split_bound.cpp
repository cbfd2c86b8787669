#include "stagecraft/plan/split_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>

#include "stagecraft/plan/balance.h"
#include "stagecraft/plan/unlimited.h"

namespace stagecraft {
namespace {

/// The tables that the bounds of all stages share.
struct Chain {
  const StageComposer* composer;
  // Entry l: the least gradient work on the path of a microbatch, over the layers before l.
  std::vector<double> back = {0};
  double fastest = 0;  // speed
  double hop = 0;      // the cheapest transfer between two ranks
  double size = 1;     // of all microbatches together
  double small = 1;    // of the smallest
  bool alike = true;   // microbatches
  bool step = true;

  // The time of the smallest microbatch to go forward through the layers before `layer`, over
  // `hops` boundaries.
  double head(int32_t layer, int32_t hops) const {
    return small * composer->forward(0, layer) / fastest + hops * hop;
  }
  double back_between(int32_t first, int32_t end) const {
    return back[static_cast<std::size_t>(end)] - back[static_cast<std::size_t>(first)];
  }
};

double cheapest_hop(const PlanProblem& problem) {
  double least_bytes = plan::kUnlimited;
  for (std::size_t l = 0; l + 1 < problem.layers.size(); ++l) {
    least_bytes = std::min(least_bytes, problem.layers[l].output_bytes);
  }
  if (!std::isfinite(least_bytes)) least_bytes = 0;
  const auto cost = [&](const LinkCost& link) {
    return link.latency + (link.bandwidth ? least_bytes / *link.bandwidth : 0);
  };
  double hop = cost(problem.link);
  for (const CostModel::PerLink& link : problem.links) hop = std::min(hop, cost(link.cost));
  return hop;
}

/// B1 to B3 of a stage of the layers [first, end) on a rank, with one stage a rank. The rest of the
/// model counts with its least possible cost.
double stage_bound(const Chain& chain, int32_t rank, int32_t first, int32_t end, bool recompute,
                   bool whole) {
  const StageComposer& composer = *chain.composer;
  const PlanProblem& problem = composer.problem();
  const int32_t layers = composer.num_layers();
  const int32_t ranks = problem.num_ranks();
  const PlanRank& place = problem.ranks[static_cast<std::size_t>(rank)];
  const StageLoad load = composer.stage(first, end, recompute, whole);
  const double f = load.forward / place.speed;
  double i = load.backward_input / place.speed;
  double w = load.backward_weight / place.speed;
  if (!load.is_split) {
    i = load.backward.value_or(load.backward_input + load.backward_weight) / place.speed;
    w = 0;
  }
  const double room =
      place.memory ? *place.memory - composer.fixed_memory(first, end) : plan::kUnlimited;
  if (room < chain.small * std::max(load.memory_forward, load.memory_input))
    return plan::kUnlimited;
  // The sum of the sizes of the microbatches that memory holds. Microbatches that differ may fill
  // it completely.
  const auto holds = [&](double memory) {
    if (!(memory > 0) || !std::isfinite(room)) return chain.size;
    const double fit = room / memory * (1 + 1e-9);
    return std::min(chain.size, chain.alike ? std::floor(fit) : fit);
  };
  const double in_flight = holds(load.memory_forward);
  const double waiting = load.is_split ? holds(load.memory_input) : 0;
  const double head = chain.step ? chain.head(first, rank) : 0;
  // The time of one microbatch from the start of F to the start of I: through the later stages and
  // back.
  const double later = (composer.forward(end, layers) + chain.back_between(end, layers)) *
                           chain.small / chain.fastest +
                       2.0 * (ranks - 1 - rank) * chain.hop;
  const double window = chain.small * f + later;
  const double idle = std::max(0.0, window - in_flight * f);
  const double work = chain.size * (f + i + w);
  double bound = head + idle + work;
  if (!chain.step) return bound;
  // The way back through the earlier stages. The first stage may have no work in I.
  const double back_work = problem.input_gradient ? chain.back_between(0, first) : 0;
  const double back = chain.small * back_work / chain.fastest + rank * chain.hop;
  const bool more_than_fit = in_flight < chain.size * (1 - 1e-12);
  const double idle_if = more_than_fit ? idle : 0;
  const double undone = std::min(chain.size * (i + w), in_flight * (i + w) + waiting * w);
  bound = std::max(bound, head + idle_if + chain.size * f + (chain.size * (i + w) - undone) +
                              (window - chain.small * f) + chain.small * i + back);
  const double undone_weight = std::min(chain.size * w, waiting * w);
  return std::max(bound, head + idle + chain.size * (f + i + w) - undone_weight + back);
}

double one_stage_a_rank(const Chain& chain, bool may_recompute) {
  const int32_t ranks = chain.composer->problem().num_ranks();
  const int32_t layers = chain.composer->num_layers();
  if (ranks > layers) return plan::kUnlimited;
  const Balanced best = balance_any(layers, ranks, [&](int32_t rank, int32_t first, int32_t end) {
    double least = std::min(stage_bound(chain, rank, first, end, false, false),
                            stage_bound(chain, rank, first, end, false, true));
    if (may_recompute) {
      least = std::min(least, stage_bound(chain, rank, first, end, true, false));
    }
    return least;
  });
  return best.largest;
}

bool ranks_differ(const PlanProblem& problem) {
  return std::any_of(problem.ranks.begin(), problem.ranks.end(),
                     [&](const PlanRank& rank) { return rank != problem.ranks.front(); });
}

}  // namespace

AnySplitBound bound_any_split(const StageComposer& composer,
                              const std::vector<int32_t>& stages_per_rank, bool may_recompute) {
  const PlanProblem& problem = composer.problem();
  const int32_t layers = composer.num_layers();
  const int32_t ranks = problem.num_ranks();
  Chain chain{.composer = &composer};
  double speeds = 0;
  for (const PlanRank& rank : problem.ranks) {
    speeds += rank.speed;
    chain.fastest = std::max(chain.fastest, rank.speed);
  }
  for (const PlanLayer& layer : problem.layers) {
    chain.back.push_back(chain.back.back() +
                         std::min(layer.cost.backward_input, layer.cost.full_backward()));
  }
  chain.hop = cheapest_hop(problem);
  chain.size = composer.total_size();
  chain.small = composer.smallest_size();
  chain.alike = problem.sizes.empty();
  chain.step = composer.objective() == Objective::kStep;

  AnySplitBound result;
  // The least work of a layer: with a split or a whole backward, without a recompute.
  double work = 0;
  double largest = 0;
  const double path =
      composer.forward(0, layers) + (problem.input_gradient ? chain.back_between(0, layers) : 0);
  for (int32_t l = 0; l < layers; ++l) {
    const PlanLayer& layer = problem.layers[static_cast<std::size_t>(l)];
    const double backward = std::min(layer.cost.backward_input + layer.cost.backward_weight,
                                     layer.cost.full_backward());
    work += layer.cost.forward + backward;
    largest = std::max(largest, layer.cost.forward + backward);
  }
  result.even_share = work * chain.size / speeds;
  double heads = 0;
  for (int32_t k = 1; chain.step && k < std::min(ranks, layers); ++k) heads += chain.head(k, k);
  const bool alike = !ranks_differ(problem);
  double any = result.even_share + (alike ? heads / ranks : 0);
  any = std::max(any, largest * chain.size / chain.fastest);
  any = std::max(any, chain.small * path / chain.fastest +
                          (chain.step ? 2.0 * (std::min(ranks, layers) - 1) * chain.hop : 0));
  const bool only_one = stages_per_rank.size() == 1 && stages_per_rank.front() == 1;
  result.value = any;
  if (only_one && alike) {
    const double one = one_stage_a_rank(chain, may_recompute);
    if (std::isfinite(one)) result.value = std::max(any, one);
  }
  return result;
}

}  // namespace stagecraft
