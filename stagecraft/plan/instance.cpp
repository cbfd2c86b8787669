#include "stagecraft/plan/instance.h"

#include <algorithm>
#include <map>
#include <utility>

namespace stagecraft::plan {
namespace {

LinkCost find_link(const ScheduleProblem& problem, int32_t from, int32_t to) {
  LinkCost cost = problem.link;
  for (const CostModel::PerLink& entry : problem.links) {
    if (entry.from.value() == from && entry.to.value() == to) cost = entry.cost;
  }
  return cost;
}

void group(const std::vector<Instance::Edge>& edges, int32_t stages, int32_t Instance::Edge::*end,
           std::vector<int32_t>& out, std::vector<int32_t>& first) {
  for (int32_t s = 0; s < stages; ++s) {
    first.push_back(static_cast<int32_t>(out.size()));
    for (std::size_t e = 0; e < edges.size(); ++e) {
      if (edges[e].*end == s) out.push_back(static_cast<int32_t>(e));
    }
  }
  first.push_back(static_cast<int32_t>(out.size()));
}

}  // namespace

double with_slack(double cap) {
  return cap + 1e-9 * std::max(cap, 1e-3);
}

Instance::Instance(const ScheduleProblem& problem)
    : ranks(problem.placement.num_ranks()),
      stages(problem.placement.num_stages()),
      microbatches(problem.microbatches),
      is_span(problem.objective == Objective::kSpan),
      on(static_cast<std::size_t>(ranks)),
      size(problem.sizes) {
  for (const Rank rank : problem.placement.ranks()) rank_of.push_back(rank.value());
  for (int32_t s = 0; s < stages; ++s) on[rank_of[s]].push_back(s);
  if (size.empty()) size.assign(static_cast<std::size_t>(microbatches), 1.0);
  least_size = *std::min_element(size.begin(), size.end());
  const double most_size = *std::max_element(size.begin(), size.end());
  for (const double x : size) {
    sum_size += x;
    is_uniform = is_uniform && x == 1.0;
  }
  std::vector<double> total(static_cast<std::size_t>(ranks), 1.0);
  for (int32_t s = 0; s < stages; ++s) {
    const StageLoad& load = problem.stages[s];
    const int32_t r = rank_of[s];
    const double speed = problem.ranks.empty() ? 1.0 : problem.ranks[r].speed;
    const double whole = load.backward.value_or(load.backward_input + load.backward_weight);
    is_split.push_back(load.is_split ? 1 : 0);
    time[kF].push_back(load.forward / speed);
    time[kI].push_back((load.is_split ? load.backward_input : whole) / speed);
    time[kW].push_back(load.is_split ? load.backward_weight / speed : 0);
    const double after_f = load.memory_forward;
    const double after_i = load.is_split ? load.memory_input : 0;
    mf.push_back(after_f);
    mw.push_back(after_i);
    delta[kF].push_back(after_f);
    delta[kI].push_back(after_i - after_f);
    delta[kW].push_back(-after_i);
    need[kF].push_back(after_f + load.peak_forward);
    need[kI].push_back(std::max(0.0, after_i - after_f) + load.peak_input);
    need[kW].push_back(load.is_split ? load.peak_weight : 0);
    total[r] += sum_size * std::max(after_f, after_i) +
                most_size * (need[kF][s] + need[kI][s] + need[kW][s]);
  }
  for (int32_t r = 0; r < ranks; ++r) {
    const double given = problem.ranks.empty() ? std::numeric_limits<double>::infinity()
                                               : problem.ranks[r].cap - problem.ranks[r].fixed;
    cap.push_back(std::min(given, total[r]));
  }

  const StageGraph graph = stage_graph(problem);
  std::map<std::pair<int32_t, int32_t>, int32_t> known;
  int32_t chained = 0;
  for (const StageEdge& pair : graph.edges()) {
    Edge edge{pair.from.value(), pair.to.value()};
    const int32_t ends[2] = {rank_of[edge.from], rank_of[edge.to]};
    if (edge.to == edge.from + 1) ++chained;
    for (int d = 0; d < 2 && ends[0] != ends[1]; ++d) {
      const LinkCost cost = find_link(problem, ends[d], ends[1 - d]);
      edge.latency[d] = cost.latency;
      if (!cost.bandwidth) continue;
      const std::vector<double>& bytes = problem.output_bytes;
      if (bytes.empty()) continue;
      edge.send[d] =
          bytes[std::min(static_cast<std::size_t>(edge.from), bytes.size() - 1)] / *cost.bandwidth;
      edge.link[d] = known.try_emplace({ends[d], ends[1 - d]}, links).first->second;
      links = static_cast<int32_t>(known.size());
    }
    edges.push_back(edge);
  }
  has_chain = chained == stages - 1;
  group(edges, stages, &Edge::to, in_edges, first_in);
  group(edges, stages, &Edge::from, out_edges, first_out);
}

int64_t Instance::actions_of(int32_t rank) const {
  int64_t count = 0;
  for (const int32_t s : on[rank]) count += (is_split[s] ? 3 : 2);
  return count * microbatches;
}

int64_t Instance::num_actions() const {
  int64_t count = 0;
  for (int32_t r = 0; r < ranks; ++r) count += actions_of(r);
  return count;
}

double Instance::work(int32_t rank) const {
  double work = 0;
  for (const int32_t s : on[rank]) work += time[kF][s] + time[kI][s] + time[kW][s];
  return work * sum_size;
}

double Instance::most_work() const {
  double most = 0;
  for (int32_t r = 0; r < ranks; ++r) most = std::max(most, work(r));
  return most;
}

}  // namespace stagecraft::plan
