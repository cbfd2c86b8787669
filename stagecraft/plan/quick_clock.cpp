#include "stagecraft/plan/quick_clock.h"

#include <algorithm>

namespace stagecraft::plan {

QuickClock::QuickClock(const Instance& in) : in_(in) {
  times_.resize(in.num_ids());
  for (int32_t kind = 0; kind < kKinds; ++kind) {
    for (int32_t s = 0; s < in.stages; ++s) {
      for (int32_t m = 0; m < in.microbatches; ++m) {
        times_[in.id(kind, s, m)] = in.cost(kind, s, m);
        first_need_.push_back(static_cast<int32_t>(needs_.size()));
        if (kind == kW) continue;
        for (const int32_t e : kind == kF ? in.in(s) : in.out(s)) {
          const Instance::Edge& edge = in.edges[e];
          const int32_t maker = kind == kF ? edge.from : edge.to;
          needs_.push_back(
              {static_cast<int32_t>(in.id(kind, maker, m)), edge.latency[kind == kF ? 0 : 1]});
        }
      }
    }
  }
  first_need_.push_back(static_cast<int32_t>(needs_.size()));
  next_.resize(in.on.size());
  now_.resize(in.on.size());
  for (std::vector<double>& first : first_) first.resize(in.on.size());
}

bool QuickClock::start(const Words& words) {
  ends_[1].assign(in_.num_ids(), -1.0);
  std::fill(next_.begin(), next_.end(), 0);
  std::fill(now_.begin(), now_.end(), 0.0);
  return run(words);
}

bool QuickClock::change(const Words& words, int32_t rank, std::size_t place) {
  const auto id_of = [&](const Op& op) {
    return in_.id(static_cast<int32_t>(op.kind), static_cast<int32_t>(op.stage), op.m);
  };
  const std::vector<double>& accepted = ends_[0];
  std::vector<double>& tried = ends_[1];
  tried = accepted;
  first_[1] = first_[0];
  // The time from which on ends can change: when the rank is free for the changed place.
  const double since = place > 0 ? accepted[id_of(words[rank][place - 1])] : 0;
  for (int32_t r = 0; r < in_.ranks; ++r) {
    const Word& word = words[r];
    std::size_t i = place;
    if (r != rank) {
      const auto found = std::partition_point(word.begin(), word.end(), [&](const Op& op) {
        const std::size_t id = id_of(op);
        return accepted[id] - times_[id] < since;
      });
      i = static_cast<std::size_t>(found - word.begin());
    }
    next_[r] = i;
    now_[r] = i > 0 ? accepted[id_of(word[i - 1])] : 0;
    for (; i < word.size(); ++i) tried[id_of(word[i])] = -1;
  }
  return run(words);
}

void QuickClock::accept() {
  ends_[0].swap(ends_[1]);
  ends_[1].resize(ends_[0].size());
  first_[0] = first_[1];
}

bool QuickClock::run(const Words& words) {
  std::vector<double>& ends = ends_[1];
  // Goes up and down through the ranks, as values do. Each rank runs as far as it can.
  int32_t r = 0;
  int32_t step = 1;
  int32_t idle = 0;
  std::size_t left = 0;
  for (int32_t q = 0; q < in_.ranks; ++q) left += words[q].size() - next_[q];
  while (left > 0) {
    const Word& word = words[r];
    const std::size_t begin = next_[r];
    std::size_t i = begin;
    double now = now_[r];
    for (; i < word.size(); ++i) {
      const Op& op = word[i];
      const std::size_t id =
          in_.id(static_cast<int32_t>(op.kind), static_cast<int32_t>(op.stage), op.m);
      double ready = now;
      bool is_missing = false;
      for (int32_t n = first_need_[id]; n < first_need_[id + 1]; ++n) {
        const double end = ends[needs_[n].id];
        if (end < 0) {
          is_missing = true;
          break;
        }
        ready = std::max(ready, end + needs_[n].delay);
      }
      if (is_missing) break;
      if (i == 0) first_[1][r] = ready;
      now = ready + times_[id];
      ends[id] = now;
    }
    now_[r] = now;
    next_[r] = i;
    left -= i - begin;
    idle = i > begin ? 0 : idle + 1;
    if (idle > 2 * in_.ranks + 2) return false;
    if (r + step < 0 || r + step >= in_.ranks) {
      step = -step;
    } else {
      r += step;
    }
  }
  value_ = 0;
  mean_ = 0;
  for (int32_t q = 0; q < in_.ranks; ++q) {
    const double own = now_[q] - (in_.is_span ? first_[1][q] : 0);
    value_ = std::max(value_, own);
    mean_ += own / in_.ranks;
  }
  return true;
}

}  // namespace stagecraft::plan
