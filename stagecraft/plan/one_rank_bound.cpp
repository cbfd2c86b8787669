#include "stagecraft/plan/one_rank_bound.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <vector>

namespace stagecraft::plan {
namespace {

/// An action of a rank: its earliest start, its time, and the time that must follow it.
struct Job {
  double head = 0;
  double time = 0;
  double tail = 0;
};

/// Computes the largest end + tail of jobs on one rank, if jobs may interrupt each other.
class JacksonOrder {
 public:
  double run(std::vector<Job>& jobs) {
    std::sort(jobs.begin(), jobs.end(), [](const Job& a, const Job& b) { return a.head < b.head; });
    waiting_.clear();
    double now = 0;
    double latest = 0;
    std::size_t next = 0;
    while (next < jobs.size() || !waiting_.empty()) {
      if (waiting_.empty()) now = std::max(now, jobs[next].head);
      for (; next < jobs.size() && jobs[next].head <= now; ++next) push(jobs[next]);
      const double until =
          next < jobs.size() ? jobs[next].head : std::numeric_limits<double>::infinity();
      Job& first = waiting_.front();
      if (now + first.time <= until) {
        now += first.time;
        latest = std::max(latest, now + first.tail);
        std::pop_heap(waiting_.begin(), waiting_.end(), is_less_urgent);
        waiting_.pop_back();
      } else {
        first.time -= until - now;
        now = until;
      }
    }
    return latest;
  }

 private:
  static bool is_less_urgent(const Job& a, const Job& b) { return a.tail < b.tail; }
  void push(const Job& job) {
    waiting_.push_back(job);
    std::push_heap(waiting_.begin(), waiting_.end(), is_less_urgent);
  }

  std::vector<Job> waiting_;  // a heap, the longest tail on top
};

class HeadsAndTails {
 public:
  explicit HeadsAndTails(const Instance& in) : in_(in) {
    const auto pairs = static_cast<std::size_t>(in.stages) * in.microbatches;
    for (int kind = 0; kind < 2; ++kind) {
      head_[kind].assign(pairs, 0.0);
      tail_[kind].assign(pairs, 0.0);
    }
    for (int32_t s = 0; s < in.stages; ++s) {
      const double room = with_slack(in.cap[in.rank_of[s]]);
      const double k = in.mf[s] > 0 ? std::floor(room / in.mf[s] + 1e-9) : in.microbatches;
      const bool is_tight = in.is_split[s] && k * in.mf[s] + in.mw[s] > room;
      held_.push_back(
          static_cast<int32_t>(std::clamp(k, 1.0, static_cast<double>(in.microbatches))));
      extra_.push_back(is_tight ? std::min(in.time[kW][s], in.time[kI][s]) : 0);
    }
    for (int32_t m = 0; m < in.microbatches; ++m) set_heads(m);
    for (int32_t m = in.microbatches - 1; m >= 0; --m) set_tails(m);
  }

  Job job(int32_t kind, int32_t s, int32_t m) const {
    const std::size_t i = at(s, m);
    if (kind != kW) return {head_[kind][i], in_.time[kind][s], tail_[kind][i]};
    return {head_[kI][i] + in_.time[kI][s], in_.time[kW][s],
            (in_.microbatches - 1 - m) * in_.time[kW][s]};
  }

 private:
  std::size_t at(int32_t s, int32_t m) const {
    return static_cast<std::size_t>(s) * in_.microbatches + m;
  }

  void set_heads(int32_t m) {
    for (int32_t s = 0; s < in_.stages; ++s) {
      double& head = head_[kF][at(s, m)];
      for (const int32_t e : in_.in(s)) {
        const Instance::Edge& edge = in_.edges[e];
        head =
            std::max(head, head_[kF][at(edge.from, m)] + in_.time[kF][edge.from] + edge.delay(0));
      }
      if (m > 0) head = std::max(head, head_[kF][at(s, m - 1)] + in_.time[kF][s]);
      if (m >= held_[s]) {
        head = std::max(head, head_[kI][at(s, m - held_[s])] + in_.time[kI][s] + extra_[s]);
      }
    }
    for (int32_t s = in_.stages - 1; s >= 0; --s) {
      double& head = head_[kI][at(s, m)];
      head = head_[kF][at(s, m)] + in_.time[kF][s];
      for (const int32_t e : in_.out(s)) {
        const Instance::Edge& edge = in_.edges[e];
        head = std::max(head, head_[kI][at(edge.to, m)] + in_.time[kI][edge.to] + edge.delay(1));
      }
      if (m > 0) head = std::max(head, head_[kI][at(s, m - 1)] + in_.time[kI][s]);
    }
  }

  void set_tails(int32_t m) {
    for (int32_t s = 0; s < in_.stages; ++s) {
      double& tail = tail_[kI][at(s, m)];
      tail = (in_.microbatches - m) * in_.time[kW][s];  // W of microbatch m and of the later ones
      for (const int32_t e : in_.in(s)) {
        const Instance::Edge& edge = in_.edges[e];
        tail =
            std::max(tail, edge.delay(1) + in_.time[kI][edge.from] + tail_[kI][at(edge.from, m)]);
      }
      if (m + 1 < in_.microbatches) {
        tail = std::max(tail, in_.time[kI][s] + tail_[kI][at(s, m + 1)]);
      }
      if (m + held_[s] < in_.microbatches) {
        const int32_t waits = m + held_[s];
        tail = std::max(tail, extra_[s] + in_.time[kF][s] + tail_[kF][at(s, waits)]);
      }
    }
    for (int32_t s = in_.stages - 1; s >= 0; --s) {
      double& tail = tail_[kF][at(s, m)];
      tail = in_.time[kI][s] + tail_[kI][at(s, m)];
      for (const int32_t e : in_.out(s)) {
        const Instance::Edge& edge = in_.edges[e];
        tail = std::max(tail, edge.delay(0) + in_.time[kF][edge.to] + tail_[kF][at(edge.to, m)]);
      }
      if (m + 1 < in_.microbatches) {
        tail = std::max(tail, in_.time[kF][s] + tail_[kF][at(s, m + 1)]);
      }
    }
  }

  const Instance& in_;
  std::vector<double> head_[2];  // F, I; by stage, then microbatch
  std::vector<double> tail_[2];
  std::vector<int32_t> held_;  // by stage: how many activations fit
  std::vector<double> extra_;  // by stage
};

}  // namespace

Bound one_rank_bound(const Instance& in) {
  Bound best{.value = 0, .argument = BoundArgument::kOneRank, .rank = Rank(0)};
  if (in.is_span || !in.is_uniform) return best;
  const HeadsAndTails times(in);
  JacksonOrder order;
  std::vector<Job> jobs;
  for (int32_t r = 0; r < in.ranks; ++r) {
    jobs.clear();
    for (const int32_t s : in.on[r]) {
      for (int32_t m = 0; m < in.microbatches; ++m) {
        jobs.push_back(times.job(kF, s, m));
        jobs.push_back(times.job(kI, s, m));
        if (in.is_split[s]) jobs.push_back(times.job(kW, s, m));
      }
    }
    const double value = order.run(jobs);
    if (value > best.value) best = {value, BoundArgument::kOneRank, Rank(r)};
  }
  return best;
}

}  // namespace stagecraft::plan
