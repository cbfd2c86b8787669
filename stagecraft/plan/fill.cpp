#include "stagecraft/plan/fill.h"

#include <algorithm>

#include "stagecraft/base/assert.h"

namespace stagecraft::plan {

GapFiller::GapFiller(const Instance& in)
    : in_(in), evaluator_(in), eps_(1e-11 * in.most_work()), lines_(in.on.size()) {}

void GapFiller::load(const Words& words) {
  starts_.assign(in_.num_ids(), -1.0);
  places_.assign(in_.num_ids(), -1);
  for (int32_t r = 0; r < in_.ranks; ++r) {
    std::vector<Slot>& line = lines_[r];
    line.clear();
    double held = 0;
    for (const Op& op : words[r]) {
      const std::size_t id = in_.id(op.kind, static_cast<int32_t>(op.stage), op.m);
      const double stop = evaluator_.ends()[id];
      starts_[id] = stop - in_.cost(op.kind, static_cast<int32_t>(op.stage), op.m);
      places_[id] = static_cast<int32_t>(line.size());
      line.push_back({starts_[id], stop, held, op});
      held += delta(op);
    }
  }
}

void GapFiller::store(Words& words) const {
  words.resize(lines_.size());
  for (std::size_t r = 0; r < lines_.size(); ++r) {
    words[r].clear();
    for (const Slot& slot : lines_[r]) words[r].push_back(slot.op);
  }
}

double GapFiller::ready(const Op& op) const {
  const auto s = static_cast<int32_t>(op.stage);
  double ready = op.m > 0 ? end(op.kind, s, op.m - 1) : 0;
  if (op.kind == kW) return std::max(ready, end(kI, s, op.m));
  if (op.kind == kI) ready = std::max(ready, end(kF, s, op.m));
  for (const int32_t e : op.kind == kF ? in_.in(s) : in_.out(s)) {
    const Instance::Edge& edge = in_.edges[e];
    const int32_t maker = op.kind == kF ? edge.from : edge.to;
    ready = std::max(ready, end(op.kind, maker, op.m) + edge.delay(op.kind == kF ? 0 : 1));
  }
  return ready;
}

double GapFiller::due(const Op& op, double limit) const {
  const auto s = static_cast<int32_t>(op.stage);
  double due = limit;
  if (op.m + 1 < in_.microbatches) due = std::min(due, start(op.kind, s, op.m + 1));
  if (op.kind == kW) return due;
  if (op.kind == kF) due = std::min(due, start(kI, s, op.m));
  if (op.kind == kI && in_.is_split[s]) due = std::min(due, start(kW, s, op.m));
  for (const int32_t e : op.kind == kF ? in_.out(s) : in_.in(s)) {
    const Instance::Edge& edge = in_.edges[e];
    const int32_t reader = op.kind == kF ? edge.to : edge.from;
    due = std::min(due, start(op.kind, reader, op.m) - edge.delay(op.kind == kF ? 0 : 1));
  }
  return due;
}

// Moves the slot at `from` to the place `to` and to the time `at`. The slots between them move up.
void GapFiller::shift(int32_t rank, std::size_t from, std::size_t to, double at) {
  std::vector<Slot>& line = lines_[rank];
  const double change = delta(line[from].op);
  line[from].end += at - line[from].start;
  line[from].start = at;
  const auto first = line.begin();
  const auto place = [&](std::size_t i) { return first + static_cast<std::ptrdiff_t>(i); };
  if (to < from) {
    line[from].before = line[to].before;
    for (std::size_t i = to; i < from; ++i) line[i].before += change;
    std::rotate(place(to), place(from), place(from + 1));
  } else if (to > from) {
    line[from].before = line[to].before + delta(line[to].op) - change;
    for (std::size_t i = from + 1; i <= to; ++i) line[i].before -= change;
    std::rotate(place(from), place(from + 1), place(to + 1));
  }
  for (std::size_t i = std::min(from, to); i <= std::max(from, to); ++i) {
    const Op& op = line[i].op;
    const std::size_t id = in_.id(op.kind, static_cast<int32_t>(op.stage), op.m);
    places_[id] = static_cast<int32_t>(i);
    starts_[id] = line[i].start;
  }
}

void GapFiller::move_early(int32_t rank, std::size_t place) {
  std::vector<Slot>& line = lines_[rank];
  const Slot slot = line[place];
  const double earliest = ready(slot.op);
  if (earliest >= slot.start - eps_) return;
  const double time = slot.end - slot.start;
  const double cap = with_slack(in_.cap[rank]);
  const double change = delta(slot.op);
  const double own = need(slot.op);
  std::size_t to = place;
  double at = std::max(earliest, place > 0 ? line[place - 1].end : 0.0);
  for (std::size_t j = place; j-- > 0;) {  // the place before slot j
    if (line[j].end <= earliest + eps_) break;
    if (change > 0 && line[j].before + change + need(line[j].op) > cap) break;
    const double gap = std::max(j > 0 ? line[j - 1].end : 0.0, earliest);
    if (gap + time <= line[j].start + eps_ && line[j].before + own <= cap) {
      to = j;
      at = gap;
    }
  }
  if (at < slot.start - eps_) shift(rank, place, to, at);
}

void GapFiller::move_late(int32_t rank, std::size_t place, double limit) {
  std::vector<Slot>& line = lines_[rank];
  const Slot slot = line[place];
  const double latest = due(slot.op, limit);
  if (slot.end >= latest - eps_) return;
  const double time = slot.end - slot.start;
  const double cap = with_slack(in_.cap[rank]);
  const double change = delta(slot.op);
  const double own = need(slot.op);
  std::size_t to = place;
  double at = std::min(latest, place + 1 < line.size() ? line[place + 1].start : limit) - time;
  for (std::size_t j = place + 1; j < line.size() && line[j].end <= latest + eps_; ++j) {
    const Op& passed = line[j].op;
    if (change < 0 && line[j].before - change + need(passed) > cap) break;
    const double gap = std::min(latest, j + 1 < line.size() ? line[j + 1].start : limit);
    const double held = line[j].before + delta(passed) - change;  // when the action starts
    if (gap - line[j].end >= time - eps_ && held + own <= cap) {
      to = j;
      at = gap - time;
    }
  }
  if (at > slot.start + eps_) shift(rank, place, to, at);
}

void GapFiller::move_all_late() {
  order_.clear();
  for (int32_t r = 0; r < in_.ranks; ++r) {
    for (const Slot& slot : lines_[r]) {
      order_.push_back(
          {-slot.end, {r, in_.id(slot.op.kind, static_cast<int32_t>(slot.op.stage), slot.op.m)}});
    }
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [time, who] : order_) {
    move_late(who.first, static_cast<std::size_t>(places_[who.second]), limits_[who.first]);
  }
}

void GapFiller::move_all_early() {
  order_.clear();
  for (int32_t r = 0; r < in_.ranks; ++r) {
    for (const Slot& slot : lines_[r]) {
      order_.push_back(
          {slot.start, {r, in_.id(slot.op.kind, static_cast<int32_t>(slot.op.stage), slot.op.m)}});
    }
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  for (const auto& [time, who] : order_) {
    move_early(who.first, static_cast<std::size_t>(places_[who.second]));
  }
}

// REQUIRES that the last run of the evaluator was that of `words`.
Score GapFiller::fill(Words& words, const Score& before) {
  limits_.resize(lines_.size());
  for (int32_t r = 0; r < in_.ranks; ++r) {
    limits_[r] = in_.is_span ? evaluator_.first_start(r) + before.span : before.makespan;
  }
  load(words);
  move_all_late();
  move_all_early();
  store(words);
  return evaluator_.run(words);
}

Score GapFiller::pass(Words& words) {
  const Score before = evaluator_.run(words);
  SC_ASSERT(before.runs && before.fits);
  return fill(words, before);
}

double GapFiller::improve(Words& words, double value, int patience, double enough) {
  constexpr int kMostPasses = 40;
  Words current = words;
  Score score = evaluator_.run(current);
  SC_ASSERT(score.runs && score.fits);
  int in_vain = 0;
  for (int i = 0; i < kMostPasses && in_vain < patience && value > enough && score.runs; ++i) {
    score = fill(current, score);
    if (score.value < value - eps_) {
      value = score.value;
      words = current;
      in_vain = 0;
    } else {
      ++in_vain;
    }
  }
  return value;
}

}  // namespace stagecraft::plan
