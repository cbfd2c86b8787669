#include "stagecraft/plan/bound.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/plan/instance.h"
#include "stagecraft/plan/left_over.h"
#include "stagecraft/plan/one_rank_bound.h"
#include "stagecraft/plan/paths.h"
#include "stagecraft/plan/search_bound.h"

namespace stagecraft {
namespace plan {
namespace {

// Computes all bounds of an instance and keeps the largest.
class BoundSearch {
 public:
  explicit BoundSearch(const Instance& in)
      : in_(in), all_(in, PathEdges::kAll), chain_(in, PathEdges::kChain), x_(in.least_size) {
    for (int32_t s = 0; s < in.stages; ++s) {
      inputs_before_.push_back(
          s == 0 ? 0 : inputs_before_[s - 1] + chain_delay(s) + x_ * in.time[kI][s - 1]);
    }
  }

  Bound run() {
    for (int32_t r = 0; r < in_.ranks; ++r) {
      if (in_.has_chain) {
        look_at(r);
      } else {
        work_alone(r);
      }
    }
    double alone = 0;
    for (int32_t s = 0; s < in_.stages; ++s) {
      const double end = all_.head[s] + x_ * in_.time[kF][s] + all_.tail[s];
      if (!in_.is_span) alone = std::max(alone, end);
    }
    // For the span: the rank of the first stage begins with its F, and its I and W come last on the
    // way back.
    if (in_.is_span && in_.has_chain) {
      alone = chain_.head_input[0] + x_ * (in_.time[kI][0] + in_.time[kW][0]);
    }
    offer(alone, BoundArgument::kOneMicrobatch, in_.rank_of[0]);
    return best_;
  }

 private:
  // The first and the last stage of a rank, and its work by kind.
  struct View {
    int32_t rank = 0;
    int32_t s1 = 0;
    int32_t last = 0;
    double forwards = 0;
    double inputs = 0;
    double weights = 0;
  };

  void offer(double value, BoundArgument argument, int32_t rank) {
    if (value > best_.value) best_ = {value, argument, Rank(rank)};
  }

  double chain_delay(int32_t s) const {
    double delay = 0;
    for (const int32_t e : in_.in(s)) {
      if (in_.edges[e].from == s - 1) delay = in_.edges[e].delay(1);
    }
    return delay;
  }

  View view(int32_t r) const {
    View v{r, in_.on[r].front(), in_.on[r].back()};
    for (const int32_t s : in_.on[r]) {
      v.forwards += in_.time[kF][s] * in_.sum_size;
      v.inputs += in_.time[kI][s] * in_.sum_size;
      v.weights += in_.time[kW][s] * in_.sum_size;
    }
    return v;
  }

  void work_alone(int32_t r) {
    const View v = view(r);
    double head = all_.head[v.s1];
    for (const int32_t s : in_.on[r]) head = std::min(head, all_.head[s]);
    offer((in_.is_span ? 0 : head) + v.forwards + v.inputs + v.weights, BoundArgument::kWork, r);
  }

  void look_at(int32_t r) {
    const View v = view(r);
    const double head = in_.is_span ? 0 : all_.head[v.s1];
    // Before its first I, a rank is idle if the F that its memory holds take less time than the
    // first gradient takes to arrive.
    const Paths& path = in_.is_span ? chain_ : all_;
    const double window = path.head_input[v.last] - path.head[v.s1];
    const double most = most_forwards(in_, r);
    const double idle_first = std::max(0.0, window - most);
    const bool has_more = most < v.forwards * (1 - 1e-12);  // the first I is before the last F
    const double left = most_left_after_forwards(in_, r);
    const double left_weights = most_left_after_inputs(in_, r);
    const double forced = std::max(0.0, v.inputs + v.weights - left);
    const double forced_weights = std::max(0.0, v.weights - left_weights);

    // The time between the last F and the I of s1 for the same microbatch. The I and W of s1 for
    // that microbatch cannot run in it.
    const double trip = chain_.head_input[v.s1] - chain_.head[v.last] - x_ * in_.time[kF][v.last];
    const double own = x_ * (in_.time[kI][v.s1] + in_.time[kW][v.s1]);
    const double idle_last = std::max(0.0, trip - std::max(0.0, left - own));
    const double work = v.forwards + v.inputs + v.weights;
    offer(head + work + (has_more ? idle_first + idle_last : std::max(idle_first, idle_last)),
          BoundArgument::kWork, r);

    const double until_forward = v.forwards + (has_more ? idle_first : 0) + forced;
    const double until_input = v.forwards + v.inputs + idle_first + forced_weights;
    if (in_.is_span) {
      through_others(v, until_forward, until_input);
    } else {
      offer(head + until_forward + all_.tail[v.last], BoundArgument::kLastForward, r);
      offer(head + until_input + all_.tail_input[v.s1], BoundArgument::kLastInput, r);
    }
    memory_time(v, head);
    round_trips(v, head);
    if (in_.on[r].size() > 1) pivots(v, head);
  }

  // Bounds the span of an earlier rank q: its first F is before the first F of this rank, and its
  // last W after the last W of this rank.
  void through_others(const View& v, double until_forward, double until_input) {
    for (int32_t q = 0; q < in_.ranks; ++q) {
      const int32_t first = in_.on[q].front();
      if (first > v.s1) continue;
      const double before = chain_.head[v.s1] - chain_.head[first];
      const double weight = x_ * in_.time[kW][first];
      // The time from the end of F of this rank's last stage to the end of I of stage `first`.
      const double back = chain_.head_input[first] + x_ * in_.time[kI][first] -
                          chain_.head[v.last] - x_ * in_.time[kF][v.last];
      offer(before + until_forward + back + weight, BoundArgument::kLastForward, v.rank);
      offer(before + until_input + inputs_before_[v.s1] - inputs_before_[first] + weight,
            BoundArgument::kLastInput, v.rank);
    }
  }

  double life(int32_t s) const {
    return chain_.head_input[s] - chain_.head[s] + x_ * in_.time[kI][s];
  }

  void memory_time(const View& v, double head) {
    double area = 0;
    for (const int32_t s : in_.on[v.rank]) {
      area += in_.sum_size * (in_.mf[s] * life(s) + in_.mw[s] * x_ * in_.time[kW][s]);
    }
    if (in_.cap[v.rank] > 0) {
      offer(head + area / with_slack(in_.cap[v.rank]), BoundArgument::kMemoryTime, v.rank);
    }
  }

  void round_trips(const View& v, double head) {
    const int32_t s = v.s1;
    if (!in_.is_uniform || in_.on[v.rank].size() != 1 || in_.mf[s] <= 0) return;
    const double room = with_slack(in_.cap[v.rank]);
    const double k = std::floor(room / in_.mf[s] + 1e-9);
    if (k < 1) return;
    const bool is_tight = in_.is_split[s] && k * in_.mf[s] + in_.mw[s] > room;
    const double extra = is_tight ? std::min(in_.time[kW][s], in_.time[kI][s]) : 0;
    const double others = in_.microbatches - 1;
    const double trips = std::floor(others / k);
    const double cycle =
        trips * (life(s) + extra) + (others - trips * k) * in_.time[kF][s] + life(s);
    const double after = in_.is_span ? in_.time[kW][s] : all_.tail_input[s];
    offer(head + cycle + after, BoundArgument::kRoundTrips, v.rank);
  }

  // B4 and B5: the work around the first I and the last F of each stage of the rank.
  void pivots(const View& v, double head) {
    const std::vector<int32_t>& on = in_.on[v.rank];
    const double work = v.forwards + v.inputs + v.weights;
    for (std::size_t i = 0; i < on.size(); ++i) {
      const int32_t s = on[i];
      double memory = in_.mf[s];
      double done = in_.time[kF][s];
      double left = in_.time[kI][s] + in_.time[kW][s];
      before_.clear();
      after_.clear();
      for (std::size_t j = 0; j < on.size(); ++j) {
        if (j == i) continue;
        const int32_t t = on[j];
        const double backward = in_.time[kI][t] + in_.time[kW][t];
        after_.push_back({in_.mf[t], backward});
        if (j < i) {
          memory += in_.mf[t];
          done += in_.time[kF][t];
          before_.push_back({in_.mf[t], in_.time[kF][t]});
        } else {
          done += in_.time[kF][t] + backward;
          left += in_.time[kF][t] + backward;
        }
      }
      before_.push_back({memory, done});
      after_.push_back({in_.mf[s], left});
      for (const int32_t t : on) {
        if (in_.time[kW][t] > 0) after_.push_back({in_.mw[t], in_.time[kW][t]});
      }
      const double rest = std::max(0.0, work - most_held(before_, v.rank));
      const double must = std::max(0.0, work - most_held(after_, v.rank));
      if (in_.is_span) {
        const double until = chain_.head_input[s] - chain_.head[v.s1];
        offer(until + rest, BoundArgument::kFirstGradient, v.rank);
      } else {
        offer(all_.head_input[s] + rest, BoundArgument::kFirstGradient, v.rank);
        offer(head + must + all_.tail[s], BoundArgument::kLastLeaving, v.rank);
      }
    }
  }

  struct Held {
    double memory = 0;
    double time = 0;
  };

  // The most time of items that memory holds. Parts of an item are allowed. Each item counts at
  // most once for each microbatch.
  double most_held(std::vector<Held>& things, int32_t rank) const {
    const auto density = [](const Held& h) { return h.time / std::max(1e-12, h.memory); };
    std::sort(things.begin(), things.end(),
              [&](const Held& a, const Held& b) { return density(a) > density(b); });
    double room = with_slack(in_.cap[rank]);
    double got = 0;
    for (const Held& thing : things) {
      double n = in_.sum_size;
      if (thing.memory > 0) n = std::min(n, std::max(0.0, room / thing.memory));
      got += n * thing.time;
      room -= n * thing.memory;
    }
    return got;
  }

  const Instance& in_;
  Paths all_;
  Paths chain_;
  double x_;
  std::vector<double> inputs_before_;  // time from the end of I of a stage to that of stage 0
  std::vector<Held> before_;
  std::vector<Held> after_;
  Bound best_;
};

}  // namespace

Bound lower_bound(const Instance& in) {
  return BoundSearch(in).run();
}

Bound tight_bound(const Instance& in) {
  const Bound quick = lower_bound(in);
  const Bound slow = one_rank_bound(in);
  // Sums of many terms may differ in their last bits.
  return slow.value > quick.value * (1 + 1e-12) ? slow : quick;
}

}  // namespace plan

std::string_view to_string(BoundArgument argument) {
  switch (argument) {
    case BoundArgument::kOneMicrobatch:
      return "one microbatch";
    case BoundArgument::kWork:
      return "B1";
    case BoundArgument::kLastForward:
      return "B2";
    case BoundArgument::kLastInput:
      return "B3";
    case BoundArgument::kFirstGradient:
      return "B4";
    case BoundArgument::kLastLeaving:
      return "B5";
    case BoundArgument::kMemoryTime:
      return "B6";
    case BoundArgument::kRoundTrips:
      return "B7";
    case BoundArgument::kOneRank:
      return "B8";
  }
  return "";
}

std::string to_sentence(const Bound& bound) {
  const int32_t r = bound.rank.value();
  switch (bound.argument) {
    case BoundArgument::kOneMicrobatch:
      return "One microbatch alone takes that long.";
    case BoundArgument::kWork:
      return fmt::format("Rank {} has that much work and unavoidable idle time (B1).", r);
    case BoundArgument::kLastForward:
      return fmt::format(
          "At the end of its last forward rank {} has done all but what its memory holds (B2).", r);
    case BoundArgument::kLastInput:
      return fmt::format(
          "At the end of its last input gradient rank {} has done all but the weight gradients "
          "that its memory holds (B3).",
          r);
    case BoundArgument::kFirstGradient:
      return fmt::format(
          "When the first gradient reaches rank {}, it can have done no more than its memory holds "
          "(B4).",
          r);
    case BoundArgument::kLastLeaving:
      return fmt::format(
          "When the last forward leaves rank {}, it must have done all but what its memory holds "
          "(B5).",
          r);
    case BoundArgument::kMemoryTime:
      return fmt::format(
          "On rank {} every microbatch holds its memory for at least a round trip (B6).", r);
    case BoundArgument::kRoundTrips:
      return fmt::format(
          "Rank {} starts a forward only when an earlier microbatch is back, since its memory "
          "holds few (B7).",
          r);
    case BoundArgument::kOneRank:
      return fmt::format(
          "Rank {} needs that long, given when each of its actions can start and what must follow "
          "it (B8).",
          r);
  }
  return "";
}

namespace {

/// The instance without the memory that may be absent: a bound must not count on it.
plan::Instance without_passing(const ScheduleProblem& problem) {
  if (!problem.has_passing()) return plan::Instance(problem);
  ScheduleProblem least = problem;
  for (RankLimit& rank : least.ranks) rank.fixed -= rank.passing;
  return plan::Instance(least);
}

}  // namespace

Bound lower_bound(const ScheduleProblem& problem) {
  check_problem(problem);
  return plan::lower_bound(without_passing(problem));
}

Bound tight_bound(const ScheduleProblem& problem) {
  check_problem(problem);
  return plan::tight_bound(without_passing(problem));
}

}  // namespace stagecraft
