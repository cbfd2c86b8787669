#include "stagecraft/plan/plan_choice.h"

#include <algorithm>
#include <numeric>
#include <optional>
#include <utility>

#include "stagecraft/base/assert.h"

namespace stagecraft {
namespace {

template <typename Get>
std::vector<double> prefix_sums(const std::vector<PlanLayer>& layers, Get&& get) {
  std::vector<double> sums = {0};
  for (const PlanLayer& layer : layers) sums.push_back(sums.back() + get(layer));
  return sums;
}

}  // namespace

std::string_view to_string(PlacementStyle style) {
  return style == PlacementStyle::kV ? "v" : "loop";
}

bool PlanChoice::recomputes() const {
  return std::find(recompute.begin(), recompute.end(), true) != recompute.end();
}

std::vector<int32_t> active_to_try(const PlanProblem& problem, int32_t stages_per_rank) {
  const PlanSharding& sharding = problem.sharding;
  if (!sharding.has_gathers()) return {0};
  if (sharding.max_active_stages) {
    return {*sharding.max_active_stages < stages_per_rank ? *sharding.max_active_stages : 0};
  }
  std::vector<int32_t> tried = {0};
  const bool limited = std::any_of(problem.ranks.begin(), problem.ranks.end(),
                                   [](const PlanRank& rank) { return rank.memory.has_value(); });
  for (int32_t n = std::min(kDefaultActiveStages, stages_per_rank - 1); limited && n > 0; --n) {
    tried.push_back(n);
  }
  return tried;
}

int32_t least_active(const PlanProblem& problem, int32_t stages_per_rank) {
  const PlanSharding& sharding = problem.sharding;
  if (!sharding.has_gathers() || stages_per_rank == 1) return 0;
  const int32_t least = sharding.max_active_stages.value_or(1);
  return least < stages_per_rank ? least : 0;
}

Placement place_stages(const PlanChoice& choice, int32_t ranks) {
  SC_ASSERT(ranks >= 1 && choice.num_stages() == choice.stages_per_rank * ranks);
  SC_ASSERT(choice.rank_order.empty() ||
            choice.rank_order.size() == static_cast<std::size_t>(ranks));
  std::vector<std::optional<Rank>> rank_of;
  for (int32_t s = 0; s < choice.num_stages(); ++s) {
    const int32_t lap = s / ranks;
    const int32_t step = s % ranks;
    const bool back = choice.placement == PlacementStyle::kV && lap % 2 == 1;
    const int32_t place = back ? ranks - 1 - step : step;
    rank_of.emplace_back(Rank(
        choice.rank_order.empty() ? place : choice.rank_order[static_cast<std::size_t>(place)]));
  }
  return Placement::of(std::move(rank_of), ranks);
}

StageComposer::StageComposer(const PlanProblem& problem, Objective objective)
    : problem_(&problem), objective_(objective) {
  SC_ASSERT(!problem.layers.empty() && !problem.ranks.empty() && problem.microbatches >= 1);
  const std::vector<PlanLayer>& layers = problem.layers;
  forward_ = prefix_sums(layers, [](const PlanLayer& l) { return l.cost.forward; });
  input_ = prefix_sums(layers, [](const PlanLayer& l) { return l.cost.backward_input; });
  weight_ = prefix_sums(layers, [](const PlanLayer& l) { return l.cost.backward_weight; });
  full_ = prefix_sums(layers, [](const PlanLayer& l) { return l.cost.full_backward(); });
  recompute_ =
      prefix_sums(layers, [](const PlanLayer& l) { return l.recompute.value_or(l.cost.forward); });
  memory_forward_ = prefix_sums(layers, [](const PlanLayer& l) { return l.cost.memory_forward; });
  memory_weight_ =
      prefix_sums(layers, [](const PlanLayer& l) { return l.cost.memory_freed_by_weight; });
  const PlanSharding& sharding = problem.sharding;
  fixed_ = prefix_sums(layers, [&](const PlanLayer& l) { return held_memory(l, sharding).sum(); });
  if (sharding.has_gathers()) {
    pieces_ =
        prefix_sums(layers, [&](const PlanLayer& l) { return held_memory(l, sharding).pieces; });
    gathered_ =
        prefix_sums(layers, [&](const PlanLayer& l) { return held_memory(l, sharding).gathered; });
    gradients_ =
        prefix_sums(layers, [&](const PlanLayer& l) { return held_memory(l, sharding).gradients; });
    gather_ = prefix_sums(layers, [](const PlanLayer& l) { return l.gather.value_or(0); });
  }
  total_size_ = problem.microbatches;
  if (!problem.sizes.empty()) {
    total_size_ = std::accumulate(problem.sizes.begin(), problem.sizes.end(), 0.0);
    const auto [least, most] = std::minmax_element(problem.sizes.begin(), problem.sizes.end());
    smallest_size_ = *least;
    largest_size_ = *most;
  }
}

StageLoad StageComposer::stage(int32_t first, int32_t end, bool recompute,
                               bool whole_backward) const {
  StageLoad load;
  load.forward = sum(forward_, first, end);
  load.backward_input = sum(input_, first, end);
  load.backward_weight = sum(weight_, first, end);
  load.memory_forward = sum(memory_forward_, first, end);
  load.memory_input = sum(memory_weight_, first, end);
  double largest_layer = 0;
  for (int32_t l = first; l < end; ++l) {
    const PlanLayer& layer = problem_->layers[static_cast<std::size_t>(l)];
    load.peak_forward = std::max(load.peak_forward, layer.peak_forward);
    load.peak_input = std::max(load.peak_input, layer.peak_input);
    load.peak_weight = std::max(load.peak_weight, layer.peak_weight);
    largest_layer = std::max(largest_layer, layer.cost.memory_forward);
  }
  if (recompute || whole_backward) {
    load.is_split = false;
    load.backward = sum(full_, first, end);
    load.peak_input = std::max(load.peak_input, load.peak_weight);
    if (recompute) {
      const double again = sum(recompute_, first, end);
      *load.backward += again;
      load.backward_input += again;
      load.peak_input += load.memory_forward;
      // The first forward of a recompute keeps no activations. While it runs, those of one layer at
      // a time exist.
      load.peak_forward += largest_layer;
      load.memory_forward = problem_->bytes_before(static_cast<std::size_t>(first));
      load.memory_input = 0;
    }
  } else if (first == 0 && !problem_->input_gradient) {
    load.backward_weight += load.backward_input;
    load.backward_input = 0;
    load.memory_input = load.memory_forward;
    load.peak_weight = std::max(load.peak_weight, load.peak_input);
    load.peak_input = 0;
  }
  return load;
}

double StageComposer::work(int32_t first, int32_t end, bool recompute) const {
  if (recompute) {
    return sum(forward_, first, end) + sum(recompute_, first, end) + sum(full_, first, end);
  }
  return sum(forward_, first, end) + sum(input_, first, end) + sum(weight_, first, end);
}

HeldMemory StageComposer::held(int32_t first, int32_t end) const {
  if (!problem_->sharding.has_gathers()) return {.pieces = fixed_memory(first, end)};
  return {.pieces = sum(pieces_, first, end),
          .gathered = sum(gathered_, first, end),
          .gradients = sum(gradients_, first, end)};
}

IndexedVector<StageId, HeldMemory> StageComposer::held_by_stage(const PlanChoice& choice) const {
  IndexedVector<StageId, HeldMemory> stages;
  for (std::size_t s = 0; s < choice.begins.size(); ++s) {
    stages.push_back(held(choice.begins[s], end_of(choice, s)));
  }
  return stages;
}

void StageComposer::limit_sharded(const PlanChoice& choice, ScheduleProblem& problem) const {
  const IndexedVector<StageId, HeldMemory> stages = held_by_stage(choice);
  for (std::size_t r = 0; r < problem.ranks.size(); ++r) {
    std::vector<HeldMemory> own;
    for (const StageId stage : problem.placement.stages(Rank(static_cast<int32_t>(r)))) {
      own.push_back(stages[stage]);
    }
    const RankHeld held = held_by_rank(own, choice.most_active());
    problem.ranks[r].fixed = held.most;
    problem.ranks[r].passing = std::max(0.0, held.most - held.least);
  }
}

ScheduleProblem StageComposer::compose(const PlanChoice& choice) const {
  ScheduleProblem result;
  const int32_t stages = choice.num_stages();
  result.placement = place_stages(choice, problem_->num_ranks());
  result.link = problem_->link;
  result.links = problem_->links;
  result.microbatches = problem_->microbatches;
  result.sizes = problem_->sizes;
  result.objective = objective_;
  for (const PlanRank& rank : problem_->ranks) {
    RankLimit& limit = result.ranks.emplace_back();
    if (rank.memory) limit.cap = *rank.memory;
    limit.speed = rank.speed;
  }
  result.stages.reserve(static_cast<std::size_t>(stages));
  for (int32_t s = 0; s < stages; ++s) {
    const auto at = static_cast<std::size_t>(s);
    const int32_t first = choice.begins[at];
    const int32_t end = s + 1 < stages ? choice.begins[at + 1] : num_layers();
    result.stages.push_back(stage(first, end, choice.recompute[at], choice.whole_backward));
    result.ranks[result.placement.ranks()[StageId(s)].position()].fixed += fixed_memory(first, end);
    result.output_bytes.push_back(
        s + 1 < stages ? problem_->layers[static_cast<std::size_t>(end) - 1].output_bytes : 0);
  }
  if (problem_->sharding.has_gathers()) limit_sharded(choice, result);
  return result;
}

}  // namespace stagecraft
