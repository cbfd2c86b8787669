#include "tests/plan/exact.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <limits>
#include <map>
#include <vector>

namespace stagecraft {
namespace {

// How a step looks after some actions.
struct Way {
  std::vector<double> free;   // by rank
  std::vector<double> begun;  // by rank: start of its first action, -1 before
  // When F and I of a stage and microbatch ended; 0 once no action waits for them.
  std::vector<double> forward_end;
  std::vector<double> input_end;

  bool is_nowhere_later(const Way& other, bool is_span) const {
    const auto below = [](const std::vector<double>& a, const std::vector<double>& b) {
      for (std::size_t i = 0; i < a.size(); ++i) {
        if (a[i] > b[i] + 1e-9) return false;
      }
      return true;
    };
    return below(free, other.free) && below(forward_end, other.forward_end) &&
           below(input_end, other.input_end) && (!is_span || below(other.begun, begun));
  }
};

using Counts = std::vector<uint8_t>;  // F, I, W of each stage

class Enumeration {
 public:
  explicit Enumeration(const ScheduleProblem& problem)
      : problem_(problem),
        graph_(stage_graph(problem)),
        stages_(problem.placement.num_stages()),
        ranks_(problem.placement.num_ranks()),
        count_(problem.microbatches) {}

  double run() {
    const auto stages = static_cast<std::size_t>(stages_);
    const auto ranks = static_cast<std::size_t>(ranks_);
    Way start;
    start.free.assign(ranks, 0);
    start.begun.assign(ranks, -1);
    start.forward_end.assign(stages * static_cast<std::size_t>(count_), 0);
    start.input_end = start.forward_end;
    std::map<Counts, std::vector<Way>> layer;
    layer[Counts(3 * stages, 0)] = {start};
    int actions = 0;
    for (int32_t s = 0; s < stages_; ++s) actions += (load(s).is_split ? 3 : 2) * count_;
    for (int i = 0; i < actions; ++i) {
      std::map<Counts, std::vector<Way>> next;
      for (const auto& [counts, ways] : layer) extend(counts, ways, next);
      layer = std::move(next);
    }
    double best = std::numeric_limits<double>::infinity();
    for (const auto& [counts, ways] : layer) {
      for (const Way& way : ways) {
        double value = 0;
        for (std::size_t r = 0; r < ranks; ++r) {
          const bool is_span = problem_.objective == Objective::kSpan;
          value = std::max(value, way.free[r] - (is_span ? way.begun[r] : 0));
        }
        best = std::min(best, value);
      }
    }
    return best;
  }

 private:
  const StageLoad& load(int32_t s) const { return problem_.stages[static_cast<std::size_t>(s)]; }
  int32_t rank(int32_t s) const { return problem_.placement.get_rank(StageId(s)).value(); }
  double size(int32_t m) const {
    return problem_.sizes.empty() ? 1 : problem_.sizes[static_cast<std::size_t>(m)];
  }
  std::size_t pair(int32_t s, int32_t m) const {
    return static_cast<std::size_t>(s) * static_cast<std::size_t>(count_) +
           static_cast<std::size_t>(m);
  }
  int done(const Counts& counts, int kind, int32_t s) const {
    return counts[static_cast<std::size_t>(3 * s + kind)];
  }
  double delay(int32_t from, int32_t to) const {
    const int32_t a = rank(from);
    const int32_t b = rank(to);
    if (a == b) return 0;
    for (const CostModel::PerLink& link : problem_.links) {
      if (link.from.value() == a && link.to.value() == b) return link.cost.latency;
    }
    return problem_.link.latency;
  }

  // What a rank holds, and what an action of it would hold at most.
  bool fits(const Counts& counts, int kind, int32_t s, int32_t m) const {
    if (problem_.ranks.empty()) return true;
    const RankLimit& limit = problem_.ranks[static_cast<std::size_t>(rank(s))];
    double held = limit.fixed;
    for (int32_t t = 0; t < stages_; ++t) {
      if (rank(t) != rank(s)) continue;
      const int last = load(t).is_split ? done(counts, 2, t) : done(counts, 1, t);
      for (int k = last; k < done(counts, 0, t); ++k) {
        held += size(k) * (k < done(counts, 1, t) ? load(t).memory_input : load(t).memory_forward);
      }
    }
    double own = 0;
    if (kind == 0) own = load(s).memory_forward + load(s).peak_forward;
    if (kind == 1) {
      const double after = load(s).is_split ? load(s).memory_input : 0;
      own = std::max(0.0, after - load(s).memory_forward) + load(s).peak_input;
    }
    if (kind == 2) own = load(s).peak_weight;
    return held + size(m) * own <= limit.cap * (1 + 1e-9) + 1e-9;
  }

  // Whether all that the action reads is there, and since when.
  bool is_ready(const Counts& counts, const Way& way, int kind, int32_t s, int32_t m,
                double& at) const {
    at = 0;
    if (kind == 0) {
      for (const StageId p : graph_.producers(StageId(s))) {
        if (done(counts, 0, p.value()) <= m) return false;
        at = std::max(at, way.forward_end[pair(p.value(), m)] + delay(p.value(), s));
      }
      return true;
    }
    if (kind == 2) return done(counts, 1, s) > m;
    if (done(counts, 0, s) <= m) return false;
    for (const StageId c : graph_.consumers(StageId(s))) {
      if (done(counts, 1, c.value()) <= m) return false;
      at = std::max(at, way.input_end[pair(c.value(), m)] + delay(c.value(), s));
    }
    return true;
  }

  // Ends that no later action reads are all alike.
  void forget(const Counts& counts, Way& way) const {
    for (int32_t s = 0; s < stages_; ++s) {
      for (int32_t m = 0; m < count_; ++m) {
        bool is_read = true;
        for (const StageId c : graph_.consumers(StageId(s))) {
          is_read = is_read && done(counts, 0, c.value()) > m;
        }
        if (is_read) way.forward_end[pair(s, m)] = 0;
        is_read = true;
        for (const StageId p : graph_.producers(StageId(s))) {
          is_read = is_read && done(counts, 1, p.value()) > m;
        }
        if (is_read) way.input_end[pair(s, m)] = 0;
      }
    }
  }

  void extend(const Counts& counts, const std::vector<Way>& ways,
              std::map<Counts, std::vector<Way>>& next) const {
    for (int32_t s = 0; s < stages_; ++s) {
      for (int kind = 0; kind < 3; ++kind) {
        if (kind == 2 && !load(s).is_split) continue;
        const int m = done(counts, kind, s);
        if (m >= count_ || !fits(counts, kind, s, m)) continue;
        Counts after = counts;
        ++after[static_cast<std::size_t>(3 * s + kind)];
        for (const Way& way : ways) {
          double at = 0;
          if (is_ready(counts, way, kind, s, m, at))
            add(next[after], after, act(way, kind, s, m, at));
        }
      }
    }
  }

  Way act(Way way, int kind, int32_t s, int32_t m, double at) const {
    const auto r = static_cast<std::size_t>(rank(s));
    const StageLoad& cost = load(s);
    double time = cost.forward;
    if (kind == 2) time = cost.backward_weight;
    if (kind == 1) {
      time = cost.is_split ? cost.backward_input
                           : cost.backward.value_or(cost.backward_input + cost.backward_weight);
    }
    if (!problem_.ranks.empty()) time /= problem_.ranks[r].speed;
    const double start = std::max(way.free[r], at);
    if (way.begun[r] < 0) way.begun[r] = start;
    way.free[r] = start + time * size(m);
    if (kind == 0) way.forward_end[pair(s, m)] = way.free[r];
    if (kind == 1) way.input_end[pair(s, m)] = way.free[r];
    return way;
  }

  void add(std::vector<Way>& ways, const Counts& counts, Way way) const {
    forget(counts, way);
    const bool is_span = problem_.objective == Objective::kSpan;
    for (const Way& other : ways) {
      if (other.is_nowhere_later(way, is_span)) return;
    }
    std::erase_if(ways, [&](const Way& other) { return way.is_nowhere_later(other, is_span); });
    ways.push_back(std::move(way));
  }

  const ScheduleProblem& problem_;
  StageGraph graph_;
  int32_t stages_;
  int32_t ranks_;
  int32_t count_;
};

}  // namespace

double exact_optimum(const ScheduleProblem& problem) {
  return Enumeration(problem).run();
}

}  // namespace stagecraft
