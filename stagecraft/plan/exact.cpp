#include "stagecraft/plan/exact.h"

#include <algorithm>

#include "stagecraft/base/assert.h"

namespace stagecraft::plan {
namespace {

constexpr std::size_t kMostStates = 200000;  // states that are kept for comparison
constexpr std::size_t kMostWays = 12;        // ways to one state that are kept

}  // namespace

ExactSearch::ExactSearch(const Instance& in) : in_(in), paths_(in, PathEdges::kAll) {
  SC_ASSERT(takes(in));
  const auto stages = static_cast<std::size_t>(in.stages);
  const auto ranks = static_cast<std::size_t>(in.ranks);
  for (std::vector<int32_t>& done : done_) done.assign(stages, 0);
  ends_.assign(in.num_ids(), -1.0);
  free_.assign(ranks, 0.0);
  first_.assign(ranks, -1.0);
  held_.assign(ranks, 0.0);
  words_.resize(ranks);
  for (int32_t r = 0; r < in.ranks; ++r) work_.push_back(in.work(r));
  left_ = in.num_actions();
}

bool ExactSearch::find_start(int32_t kind, int32_t stage, double& start) const {
  const int32_t m = done_[kind][stage];
  const int32_t r = in_.rank_of[stage];
  if (m >= in_.microbatches || (kind == kW && !in_.is_split[stage])) return false;
  if (kind != kF && m >= done_[kind - 1][stage]) return false;
  if (held_[r] + in_.need[kind][stage] * in_.size[m] > with_slack(in_.cap[r])) return false;
  start = free_[r];
  if (kind == kW) return true;
  for (const int32_t e : kind == kF ? in_.in(stage) : in_.out(stage)) {
    const Instance::Edge& edge = in_.edges[e];
    const double end = ends_[in_.id(kind, kind == kF ? edge.from : edge.to, m)];
    if (end < 0) return false;
    start = std::max(start, end + edge.latency[kind == kF ? 0 : 1]);
  }
  return true;
}

// A bound for all completions of the state, from the remaining work of each rank and the remaining
// way of each stage's next microbatch.
double ExactSearch::least_end(double last_start) const {
  double end = 0;
  for (int32_t r = 0; r < in_.ranks; ++r) {
    const double from = work_[r] > 0 ? std::max(free_[r], last_start) : free_[r];
    const double first = in_.is_span ? std::max(0.0, first_[r]) : 0;
    if (!in_.is_span || first_[r] >= 0) end = std::max(end, from + work_[r] - first);
    if (in_.is_span) continue;
    for (const int32_t s : in_.on[r]) {
      if (const int32_t m = done_[kF][s]; m < in_.microbatches) {
        end = std::max(end, from + in_.cost(kF, s, m) + paths_.tail[s]);
      } else if (const int32_t i = done_[kI][s]; i < in_.microbatches) {
        end = std::max(end, from + in_.cost(kI, s, i) + paths_.tail_input[s]);
      }
    }
  }
  return end;
}

bool ExactSearch::is_known(double last_start) {
  uint64_t key = 0;
  for (const std::vector<int32_t>& done : done_) {
    for (const int32_t n : done) key = (key + static_cast<uint64_t>(n) + 1) * 0x9E3779B97F4A7C15U;
  }
  std::vector<double> way(free_);
  for (const std::vector<int32_t>& done : done_) way.insert(way.end(), done.begin(), done.end());
  way.push_back(last_start);  // later actions cannot start before it
  if (in_.is_span) {
    for (const double first : first_) way.push_back(-first);
  }
  for (int32_t s = 0; s < in_.stages; ++s) {  // ends of values that are still read
    for (int32_t m = 0; m < in_.microbatches; ++m) {
      bool is_read = true;
      for (const int32_t e : in_.out(s)) is_read = is_read && done_[kF][in_.edges[e].to] > m;
      way.push_back(is_read ? 0 : ends_[in_.id(kF, s, m)]);
      is_read = true;
      for (const int32_t e : in_.in(s)) is_read = is_read && done_[kI][in_.edges[e].from] > m;
      way.push_back(is_read ? 0 : ends_[in_.id(kI, s, m)]);
    }
  }
  if (seen_.size() > kMostStates) return false;
  std::vector<std::vector<double>>& ways = seen_[key];
  const std::size_t counts = free_.size();
  const std::size_t after = counts + 3 * static_cast<std::size_t>(in_.stages);
  for (const std::vector<double>& other : ways) {
    bool is_below = true;
    for (std::size_t i = 0; i < way.size() && is_below; ++i) {
      const bool is_count = i >= counts && i < after;
      is_below = is_count ? other[i] == way[i] : other[i] <= way[i];
    }
    if (is_below) return true;
  }
  if (ways.size() < kMostWays) ways.push_back(std::move(way));
  return false;
}

void ExactSearch::descend(double last_start) {
  if (++nodes_ % kNodesPerQuestion == 0 && !(*goes_on_)()) is_stopped_ = true;
  if (is_stopped_) return;
  const double least = least_end(last_start);
  if (left_ == 0) {
    if (least < value_) {
      value_ = least;
      best_ = words_;
      has_found_ = true;
    }
    return;
  }
  if (least >= value_ * (1 - 1e-12)) return;
  std::vector<Step> steps;
  for (int32_t s = 0; s < in_.stages; ++s) {
    for (int32_t kind = 0; kind < kKinds; ++kind) {
      Step step{0, in_.rank_of[s], kind, s};
      if (!find_start(kind, s, step.start)) continue;
      if (step.start >= last_start) steps.push_back(step);
    }
  }
  std::stable_sort(steps.begin(), steps.end(),
                   [](const Step& a, const Step& b) { return a.start < b.start; });
  for (const Step& step : steps) {
    const auto [start, r, kind, s] = step;
    const int32_t m = done_[kind][s]++;
    const double time = in_.cost(kind, s, m);
    const double free = free_[r];
    const double first = first_[r];
    const double held = held_[r];
    const double work = work_[r];
    const std::size_t id = in_.id(kind, s, m);
    free_[r] = start + time;
    if (first < 0) first_[r] = start;
    held_[r] += in_.delta[kind][s] * in_.size[m];
    work_[r] = std::max(0.0, work - time);
    ends_[id] = free_[r];
    words_[r].emplace_back(kind, s, m);
    --left_;
    if (!is_known(start)) descend(start);
    ++left_;
    words_[r].pop_back();
    ends_[id] = -1;
    work_[r] = work;
    held_[r] = held;
    first_[r] = first;
    free_[r] = free;
    --done_[kind][s];
    if (is_stopped_) return;
  }
}

bool ExactSearch::run(double value, const std::function<bool()>& goes_on) {
  value_ = value;
  goes_on_ = &goes_on;
  descend(0);
  return !is_stopped_;
}

}  // namespace stagecraft::plan
