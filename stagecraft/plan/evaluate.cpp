#include "stagecraft/plan/evaluate.h"

#include <algorithm>

namespace stagecraft::plan {

Evaluator::Evaluator(const Instance& in) : in_(in) {
  if (in.links > 0) {
    for (std::vector<double>& table : arrived_) {
      table.resize(in.edges.size() * static_cast<std::size_t>(in.microbatches));
    }
  }
}

double Evaluator::ready(const Op& op, std::size_t& missing) const {
  const auto s = static_cast<int32_t>(op.stage);
  double ready = 0;
  if (op.kind == kW) {
    const std::size_t own = in_.id(kI, s, op.m);
    if (ends_[own] < 0) missing = own;
    return ready;
  }
  if (op.kind == kI) {
    const std::size_t own = in_.id(kF, s, op.m);
    if (ends_[own] < 0) {
      missing = own;
      return ready;
    }
  }
  const int direction = op.kind == kF ? 0 : 1;
  for (const int32_t e : op.kind == kF ? in_.in(s) : in_.out(s)) {
    const Instance::Edge& edge = in_.edges[e];
    const std::size_t maker = in_.id(op.kind, op.kind == kF ? edge.from : edge.to, op.m);
    if (ends_[maker] < 0) {
      missing = maker;
      return ready;
    }
    const double at =
        edge.link[direction] >= 0
            ? arrived_[direction][static_cast<std::size_t>(e) * in_.microbatches + op.m]
            : ends_[maker] + edge.latency[direction];
    ready = std::max(ready, at);
  }
  return ready;
}

void Evaluator::send(const Op& op, double end) {
  const auto s = static_cast<int32_t>(op.stage);
  const int direction = op.kind == kF ? 0 : 1;
  for (const int32_t e : op.kind == kF ? in_.out(s) : in_.in(s)) {
    const Instance::Edge& edge = in_.edges[e];
    const int32_t link = edge.link[direction];
    if (link < 0) continue;
    const double left = std::max(end, link_free_[link]) + edge.send[direction];
    link_free_[link] = left;
    arrived_[direction][static_cast<std::size_t>(e) * in_.microbatches + op.m] =
        left + edge.latency[direction];
  }
}

void Evaluator::wake_readers(const Op& op, std::size_t id) {
  const auto s = static_cast<int32_t>(op.stage);
  for (const int32_t e : op.kind == kF ? in_.out(s) : in_.in(s)) {
    const int32_t reader = in_.rank_of[op.kind == kF ? in_.edges[e].to : in_.edges[e].from];
    if (waits_for_[reader] == id) {
      waits_for_[reader] = kNothing;
      awake_.push_back(reader);
    }
  }
}

std::size_t Evaluator::advance(const Word& word, int32_t rank) {
  double now = now_[rank];
  std::size_t missing = kNothing;
  for (; next_[rank] < word.size(); ++next_[rank]) {
    const Op& op = word[next_[rank]];
    const double arrived = ready(op, missing);
    if (missing != kNothing) break;
    const double start = std::max(now, arrived);
    if (first_[rank] < 0) first_[rank] = start;
    const double x = in_.size[op.m];
    now = start + in_.time[op.kind][op.stage] * x;
    const std::size_t id = in_.id(op.kind, static_cast<int32_t>(op.stage), op.m);
    ends_[id] = now;
    peak_[rank] = std::max(peak_[rank], held_[rank] + in_.need[op.kind][op.stage] * x);
    held_[rank] += in_.delta[op.kind][op.stage] * x;
    if (op.kind == kW) continue;
    if (in_.links > 0) send(op, now);
    wake_readers(op, id);
  }
  now_[rank] = now;
  return missing;
}

Score Evaluator::run(const Words& words) {
  const auto ranks = static_cast<std::size_t>(in_.ranks);
  ends_.assign(in_.num_ids(), -1.0);
  link_free_.assign(static_cast<std::size_t>(in_.links), 0.0);
  next_.assign(ranks, 0);
  waits_for_.assign(ranks, kNothing);
  now_.assign(ranks, 0.0);
  first_.assign(ranks, -1.0);
  held_.assign(ranks, 0.0);
  peak_.assign(ranks, 0.0);
  awake_.clear();
  for (int32_t r = in_.ranks - 1; r >= 0; --r) awake_.push_back(r);
  while (!awake_.empty()) {
    const int32_t r = awake_.back();
    awake_.pop_back();
    waits_for_[r] = advance(words[r], r);
  }
  Score score;
  score.fits = true;
  for (std::size_t r = 0; r < ranks; ++r) {
    if (next_[r] < words[r].size()) return {};
    score.fits = score.fits && peak_[r] <= with_slack(in_.cap[r]);
  }
  score.runs = true;
  score.makespan = 0;
  score.span = 0;
  for (std::size_t r = 0; r < ranks; ++r) {
    score.makespan = std::max(score.makespan, now_[r]);
    score.span = std::max(score.span, now_[r] - std::max(0.0, first_[r]));
  }
  if (score.fits) score.value = in_.is_span ? score.span : score.makespan;
  return score;
}

}  // namespace stagecraft::plan
