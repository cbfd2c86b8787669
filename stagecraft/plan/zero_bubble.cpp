#include "stagecraft/plan/zero_bubble.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <utility>

#include "stagecraft/base/assert.h"

namespace stagecraft::plan {
namespace {

constexpr double kUnset = -1;

class ZeroBubbleRun {
 public:
  ZeroBubbleRun(const Instance& in, const ZeroBubbleChoice& choice, Words& words)
      : in_(in), choice_(choice), words_(words), eps_(1e-11 * in.most_work()) {
    const std::size_t pairs = in.rank_of.size() * in.size.size();
    for (std::vector<double>& arrival : arrival_) arrival.assign(pairs, kUnset);
    std::fill_n(arrival_[kF].begin(), in.microbatches, 0.0);
    words_.assign(in.on.size(), {});
    states_.resize(in.on.size());
    for (int32_t r = 0; r < in.ranks; ++r) {
      State& state = states_[r];
      state.stage = in.on[r].front();
      const double least = in.mf[state.stage];
      state.cap = with_slack(std::max(std::min(in.cap[r], least), in.cap[r] * choice.memory_share));
      events_.emplace(0.0, r);
    }
  }

  bool run() {
    int64_t left = in_.num_actions();
    while (!events_.empty()) {
      const auto [now, r] = events_.top();
      events_.pop();
      if (states_[r].free_at > now + eps_) continue;
      if (step(r, now)) --left;
    }
    return left == 0;
  }

 private:
  struct State {
    int32_t stage = 0;
    int32_t done[kKinds] = {0, 0, 0};
    double free_at = 0;
    double held = 0;
    double cap = 0;
    double idle = -1;
    int32_t last = kF;
  };

  double arrival(int32_t kind, const State& state) const {
    const int32_t m = state.done[kind];
    if (m >= in_.microbatches) return std::numeric_limits<double>::infinity();
    if (kind == kI && m >= state.done[kF]) return kUnset;
    return arrival_[kind][static_cast<std::size_t>(state.stage) * in_.microbatches + m];
  }

  bool fits(const State& state) const {
    const int32_t m = state.done[kF];
    return m < in_.microbatches &&
           state.held + in_.need[kF][state.stage] * in_.size[m] <= state.cap;
  }

  bool execute(int32_t r, int32_t kind, double now) {
    State& state = states_[r];
    const int32_t s = state.stage;
    const int32_t m = state.done[kind]++;
    words_[r].emplace_back(kind, s, m);
    state.idle = state.idle < 0 ? 0 : state.idle + now - state.free_at;
    most_idle_ = std::max(most_idle_, state.idle);
    const double end = now + in_.cost(kind, s, m);
    state.free_at = end;
    state.held += in_.delta[kind][s] * in_.size[m];
    if (kind != kW) state.last = kind;
    events_.emplace(end, r);
    if (kind == kW) return true;
    for (const int32_t e : kind == kF ? in_.out(s) : in_.in(s)) {
      const Instance::Edge& edge = in_.edges[e];
      arrive(kind, kind == kF ? edge.to : edge.from, m, end + edge.delay(kind == kF ? 0 : 1));
    }
    if (kind == kF && s + 1 == in_.stages) arrive(kI, s, m, end);
    return true;
  }

  void arrive(int32_t kind, int32_t stage, int32_t m, double at) {
    arrival_[kind][static_cast<std::size_t>(stage) * in_.microbatches + m] = at;
    events_.emplace(at, in_.rank_of[stage]);
  }

  // Fills the gap until `next` with a W, or waits. If there is no W, the rank does nothing until
  // the next event.
  bool wait(int32_t r, double now, double next) {
    const State& state = states_[r];
    if (state.done[kW] == state.done[kI] || !in_.is_split[state.stage]) return false;
    const double time = in_.cost(kW, state.stage, state.done[kW]);
    const bool is_known = next >= 0 && next < std::numeric_limits<double>::infinity();
    if (!is_known || next - now >= choice_.gap * time - eps_ ||
        state.idle + (next - state.free_at) > most_idle_ + eps_) {
      return execute(r, kW, now);
    }
    return false;
  }

  bool step(int32_t r, double now) {
    const State& state = states_[r];
    const double forward = arrival(kF, state);
    const double input = arrival(kI, state);
    const bool has_forward = forward >= 0 && forward <= now + eps_;
    const bool has_input = input >= 0 && input <= now + eps_;
    const bool is_warm = state.done[kI] > 0;
    const bool can = fits(state);
    if (!is_warm && !has_input) {
      if (can && has_forward) {
        const double end = now + in_.cost(kF, state.stage, state.done[kF]);
        if (choice_.delay_first_input || input < 0 || end <= input + eps_) {
          return execute(r, kF, now);
        }
      }
      return false;
    }
    const bool wants_forward = state.last == kI && state.done[kF] < in_.microbatches;
    if (wants_forward && can) {
      if (has_forward) return execute(r, kF, now);
      if (has_input && choice_.skip_forward) return execute(r, kI, now);
      const double next = has_input ? forward : std::min(forward < 0 ? input : forward, forward);
      return wait(r, now, next);
    }
    if (wants_forward && state.done[kW] < state.done[kI] && in_.is_split[state.stage]) {
      return execute(r, kW, now);  // frees memory
    }
    if (has_input) return execute(r, kI, now);
    if (can && has_forward && state.done[kI] == state.done[kF]) return execute(r, kF, now);
    return wait(r, now, input);
  }

  const Instance& in_;
  const ZeroBubbleChoice& choice_;
  Words& words_;
  double eps_;
  double most_idle_ = 0;
  std::vector<double> arrival_[2];
  std::vector<State> states_;
  std::priority_queue<std::pair<double, int32_t>, std::vector<std::pair<double, int32_t>>,
                      std::greater<>>
      events_;
};

}  // namespace

std::vector<ZeroBubbleChoice> zero_bubble_choices() {
  std::vector<ZeroBubbleChoice> choices;
  for (const double share : {1.0, .94, .88, .75}) {
    for (const double gap : {1.0, .5, .1}) {
      for (const bool delay : {true, false}) {
        for (const bool skip : {false, true}) choices.push_back({delay, skip, gap, share});
      }
    }
  }
  return choices;
}

bool build_zero_bubble(const Instance& in, const ZeroBubbleChoice& choice, Words& words) {
  SC_ASSERT(in.ranks == in.stages && in.has_chain);
  return ZeroBubbleRun(in, choice, words).run();
}

}  // namespace stagecraft::plan
