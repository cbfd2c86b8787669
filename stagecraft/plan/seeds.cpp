#include "stagecraft/plan/seeds.h"

#include <algorithm>

namespace stagecraft::plan {
namespace {

constexpr double kUnknown = -1;

// The order of the heap of events: the earliest event is on top. Of two events at the same time,
// that of the lower rank is on top.
template <typename Event>
bool comes_later(const Event& a, const Event& b) {
  return a.time > b.time || (a.time == b.time && a.rank > b.rank);
}

}  // namespace

Seeder::Seeder(const Instance& in)
    : in_(in),
      period_(in.most_work() / in.microbatches),
      longest_forward_(*std::max_element(in.time[kF].begin(), in.time[kF].end())),
      eps_(1e-11 * in.most_work()) {
  // Times of the way through the stages and back, without skip edges.
  const auto walk = [&](int32_t first_kind, int32_t second_kind, std::vector<double>* head) {
    double t = 0;
    const auto delay = [&](int32_t from, int direction) {
      for (const int32_t e : in.out(from)) {
        if (in.edges[e].to == from + 1) return in.edges[e].delay(direction);
      }
      return 0.0;
    };
    head[0].resize(in.rank_of.size());
    head[1].resize(in.rank_of.size());
    for (int32_t s = 0; s < in.stages; ++s) {
      head[0][s] = t;
      t += in.time[first_kind][s] + delay(s, first_kind == kF ? 0 : 1);
    }
    for (int32_t s = in.stages - 1; s >= 0; --s) {
      head[1][s] = t;
      t += in.time[second_kind][s] + (s > 0 ? delay(s - 1, second_kind == kF ? 0 : 1) : 0);
    }
  };
  walk(kF, kI, head_[0]);
  walk(kI, kF, head_[1]);
  for (int32_t r = 0; r < in.ranks; ++r) {
    double room = 0;
    for (const int32_t s : in.on[r]) {
      room = std::max({room, in.need[kF][s] - in.mf[s], in.need[kI][s], in.need[kW][s]});
    }
    headroom_.push_back(room * *std::max_element(in.size.begin(), in.size.end()));
  }
}

Seeder::~Seeder() = default;

void Seeder::set_due_dates() {
  const std::vector<double>* head = head_[dates_.backwards ? 1 : 0];
  const int32_t first = dates_.backwards ? kI : kF;
  const int32_t second = dates_.backwards ? kF : kI;
  const double lag = (dates_.weight_lag + 1e-3) * period_;
  const double far = head[0].back();
  for (std::vector<double>& base : base_) base.resize(in_.rank_of.size());
  for (int32_t s = 0; s < in_.stages; ++s) {
    base_[first][s] = dates_.first_pass * head[0][s];
    base_[second][s] =
        dates_.first_pass * far + dates_.turn * period_ + dates_.second_pass * (head[1][s] - far);
    base_[kW][s] = dates_.backwards ? base_[kI][s] - lag : base_[kI][s] + lag;
  }
  if (dates_.jitter > 0) {
    Random random(dates_.jitter_seed);
    const double most = dates_.jitter * period_;
    for (std::vector<double>& base : base_) {
      for (double& date : base) date += random.uniform(-most, most);
    }
  }
  at_.resize(in_.size.size());
  double t = 0;
  for (int32_t k = 0; k < in_.microbatches; ++k) {
    at_[k] = t;
    t += period_ * size(k);
  }
}

void Seeder::start(const DueDates& dates) {
  dates_ = dates;
  eager_ = dates.eager * longest_forward_;
  set_due_dates();
  const std::size_t pairs = in_.rank_of.size() * in_.size.size();
  for (std::vector<int32_t>& done : done_) done.assign(in_.rank_of.size(), 0);
  const int first = dates.backwards ? 1 : 0;  // the pass that starts at stage 0
  for (int pass = 0; pass < 2; ++pass) {
    arrival_[pass].assign(pairs, kUnknown);
    missing_[pass].assign(pairs, 0);
    for (int32_t s = 0; s < in_.stages; ++s) {
      // In the second pass, a stage also waits for its own action of the first pass.
      const auto values =
          static_cast<int32_t>(pass == first ? in_.in(s).size() : in_.out(s).size() + 1);
      const std::size_t row = static_cast<std::size_t>(s) * in_.microbatches;
      std::fill_n(missing_[pass].begin() + static_cast<std::ptrdiff_t>(row), in_.microbatches,
                  values);
      if (values == 0) {
        std::fill_n(arrival_[pass].begin() + static_cast<std::ptrdiff_t>(row), in_.microbatches,
                    0.0);
      }
    }
  }
  free_at_.assign(in_.on.size(), 0.0);
  held_.assign(in_.on.size(), 0.0);
  idle_.assign(in_.on.size(), -1.0);
  most_idle_ = 0;
  left_.clear();
  caps_.clear();
  events_.clear();
  const double largest = *std::max_element(in_.size.begin(), in_.size.end());
  for (int32_t r = 0; r < in_.ranks; ++r) {
    left_.push_back(in_.actions_of(r));
    double least = 0;
    for (const int32_t s : in_.on[r]) least += in_.mf[s] * largest;
    const double cap = in_.cap[r] - headroom_[r];
    caps_.push_back(with_slack(std::max(std::min(cap, least), cap * dates.memory_share)));
    push(0, r);
  }
}

void Seeder::push(double time, int32_t rank) {
  events_.push_back({time, rank});
  std::push_heap(events_.begin(), events_.end(), comes_later<Event>);
}

void Seeder::offer(int32_t kind, int32_t stage, int32_t k, double at, double now) {
  const Candidate c{due(kind, stage, k), at, in_.time[kind][stage] * size(k), kind, stage, k};
  (at <= now + eps_ ? now_ : soon_).push_back(c);
}

double Seeder::reserved_forward(int32_t rank, int32_t stage, double due_date, double room) const {
  double reserved = 0;
  for (const int32_t s : in_.on[rank]) {
    if (s == stage) continue;
    const int32_t next = done_[kF][s];
    int32_t k = next;
    for (; k < in_.microbatches && reserved <= room && due(kF, s, k) < due_date; ++k) {
      reserved += in_.mf[s] * size(k);
    }
    const bool has_none = done_[kF][s] == done_[kI][s];
    if (s > stage && k == next && k < in_.microbatches && has_none) reserved += in_.mf[s] * size(k);
  }
  return reserved;
}

void Seeder::collect_forward(int32_t rank, double now) {
  const double room = caps_[rank] - held_[rank];
  for (const int32_t s : in_.on[rank]) {
    const std::size_t row = static_cast<std::size_t>(s) * in_.microbatches;
    if (const int32_t k = done_[kI][s]; k < done_[kF][s]) {
      const double at = arrival_[1][row + k];
      const bool fits = in_.need[kI][s] * size(k) <= room + headroom_[rank];
      if (at >= 0 && fits) offer(kI, s, k, at, now);
    }
    if (const int32_t k = done_[kF][s]; k < in_.microbatches) {
      const double at = arrival_[0][row + k];
      const double need = in_.mf[s] * size(k);
      if (at >= 0 && need <= room &&
          need + reserved_forward(rank, s, due(kF, s, k), room - need) <= room) {
        offer(kF, s, k, at, now);
      }
    }
    if (const int32_t k = done_[kW][s]; in_.is_split[s] && k < done_[kI][s]) {
      offer(kW, s, k, now, now);
    }
  }
}

double Seeder::reserved_backward(int32_t rank, double due_date, double room) const {
  double reserved = 0;
  for (const int32_t s : in_.on[rank]) {
    const double by_input = std::max(0.0, in_.mf[s] - in_.mw[s]);
    for (int32_t k = done_[kI][s]; k < in_.microbatches && reserved <= room; ++k) {
      if (due(kI, s, k) >= due_date) break;
      reserved += by_input * size(k);
    }
    if (!in_.is_split[s]) continue;
    for (int32_t k = done_[kW][s]; k < in_.microbatches && reserved <= room; ++k) {
      if (due(kW, s, k) >= due_date) break;
      reserved += in_.mw[s] * size(k);
    }
  }
  return reserved;
}

double Seeder::reserved_for_later(int32_t rank, int32_t after) const {
  double reserved = 0;
  for (const int32_t s : in_.on[rank]) {
    const int32_t k = done_[kI][s];
    if (s <= after || k >= in_.microbatches || k != done_[kF][s]) continue;
    reserved += std::max(0.0, in_.mf[s] - in_.mw[s]) * size(k);
    if (in_.is_split[s] && done_[kW][s] <= k) reserved += in_.mw[s] * size(k);
  }
  return reserved;
}

void Seeder::collect_backward(int32_t rank, double now) {
  const double room = caps_[rank] - held_[rank];
  for (const int32_t s : in_.on[rank]) {
    const std::size_t row = static_cast<std::size_t>(s) * in_.microbatches;
    const double by_input = in_.mf[s] - in_.mw[s];
    if (const int32_t k = done_[kF][s]; k < done_[kI][s]) {
      const double at = arrival_[0][row + k];
      if (at >= 0) offer(kF, s, k, at, now);
    }
    if (const int32_t k = done_[kI][s]; k < in_.microbatches) {
      const double at = arrival_[1][row + k];
      if (at >= 0 && (!in_.is_split[s] || done_[kW][s] > k)) {
        const double need = by_input * size(k);
        if (need <= room && need + std::max(reserved_for_later(rank, s),
                                            reserved_backward(rank, due(kI, s, k), room - need)) <=
                                room) {
          offer(kI, s, k, at, now);
        }
      }
    }
    if (const int32_t k = done_[kW][s]; in_.is_split[s] && k < in_.microbatches) {
      const double need = in_.mw[s] * size(k);
      if (need > room) continue;
      const double own = std::max(0.0, by_input) * size(k);
      const double later =
          k == done_[kI][s] ? own + reserved_for_later(rank, s) : reserved_for_later(rank, -1);
      if (need + std::max(later, reserved_backward(rank, due(kW, s, k), room - need)) <= room) {
        offer(kW, s, k, now, now);
      }
    }
  }
}

const Seeder::Candidate* Seeder::choose(int32_t rank, double now, double& wake) const {
  const Candidate* best = nullptr;
  for (const Candidate& c : now_) {
    const bool is_better =
        best == nullptr || c.due < best->due || (c.due == best->due && c.kind < best->kind);
    if (!is_better) continue;
    double delayed = std::numeric_limits<double>::infinity();  // the first arrival that it delays
    for (const Candidate& y : soon_) {
      if (y.due + eager_ < c.due && now + c.time > y.at + dates_.tolerance * c.time + eps_) {
        delayed = std::min(delayed, y.at);
      }
    }
    const bool is_free = delayed == std::numeric_limits<double>::infinity();
    if (is_free || (dates_.balance && c.kind == kW &&
                    idle_[rank] + (delayed - free_at_[rank]) > most_idle_ + eps_)) {
      best = &c;
    } else {
      wake = std::min(wake, delayed);
    }
  }
  return best;
}

void Seeder::arrive(int32_t kind, int32_t stage, int32_t k, double at) {
  const std::size_t pair = static_cast<std::size_t>(stage) * in_.microbatches + k;
  double& arrival = arrival_[kind][pair];
  // Until all values have arrived, the latest arrival t is stored as -t - 2, which is below
  // kUnknown.
  const double latest = std::max(at, arrival < kUnknown ? -arrival - 2 : 0.0);
  if (--missing_[kind][pair] > 0) {
    arrival = -latest - 2;
    return;
  }
  arrival = latest;
  push(latest, in_.rank_of[stage]);
}

void Seeder::pass_on(int32_t kind, int32_t stage, int32_t k, double end) {
  const bool is_first_pass = (kind == kI) == dates_.backwards;
  const int direction = kind == kF ? 0 : 1;
  for (const int32_t e : is_first_pass ? in_.out(stage) : in_.in(stage)) {
    const Instance::Edge& edge = in_.edges[e];
    arrive(kind, is_first_pass ? edge.to : edge.from, k, end + edge.delay(direction));
  }
  if (is_first_pass) arrive(dates_.backwards ? kF : kI, stage, k, end);
}

void Seeder::execute(const Candidate& chosen, int32_t rank, double now, Words& words) {
  const auto [due_date, at, time, kind, stage, k] = chosen;
  const double end = now + time;
  words[rank].emplace_back(kind, stage, microbatch(k));
  idle_[rank] = idle_[rank] < 0 ? 0 : idle_[rank] + (now - free_at_[rank]);
  most_idle_ = std::max(most_idle_, idle_[rank]);
  --left_[rank];
  free_at_[rank] = end;
  push(end, rank);
  const double change = in_.delta[kind][stage] * size(k);
  held_[rank] += dates_.backwards ? -change : change;
  ++done_[kind][stage];
  if (kind != kW) pass_on(kind, stage, k, end);
}

bool Seeder::build(const DueDates& dates, Words& words) {
  start(dates);
  words.resize(in_.on.size());
  int64_t left = 0;
  for (int32_t r = 0; r < in_.ranks; ++r) {
    words[r].clear();
    left += left_[r];
  }
  while (!events_.empty()) {
    const auto [now, rank] = events_.front();
    std::pop_heap(events_.begin(), events_.end(), comes_later<Event>);
    events_.pop_back();
    if (left_[rank] == 0 || free_at_[rank] > now + eps_) continue;
    now_.clear();
    soon_.clear();
    if (dates.backwards) {
      collect_backward(rank, now);
    } else {
      collect_forward(rank, now);
    }
    double wake = std::numeric_limits<double>::infinity();
    if (now_.empty()) {
      for (const Candidate& c : soon_) wake = std::min(wake, c.at);
    } else if (const Candidate* chosen = choose(rank, now, wake)) {
      execute(*chosen, rank, now, words);
      --left;
      continue;
    }
    if (wake < std::numeric_limits<double>::infinity()) push(wake, rank);
  }
  if (dates.backwards) {
    for (Word& word : words) std::reverse(word.begin(), word.end());
  }
  return left == 0;
}

}  // namespace stagecraft::plan
