#include "stagecraft/sim/clock.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace stagecraft {
namespace {

using Direction = Transfers::Direction;

double entry_for(const std::vector<double>& values, StageId stage) {
  return values.empty() ? 0 : values[std::min(stage.position(), values.size() - 1)];
}

}  // namespace

CostTable::CostTable(const CostModel& costs, int32_t stages) : stages_(stages, costs.stage) {
  for (StageId s(0); s.position() < costs.stages.size(); ++s) {
    if (stages_.contains(s)) stages_[s] = costs.stages[s.position()];
  }
  for (const CostModel::PerMicrobatch& entry : costs.microbatches) {
    exceptions_[key(entry.stage, entry.microbatch)] = entry.cost;
  }
}

double CostTable::duration(Action action) const {
  const StageCost& cost = get(action);
  switch (action.type()) {
    case ActionType::kForward:
      return cost.forward;
    case ActionType::kBackwardInput:
      return cost.backward_input;
    case ActionType::kBackwardWeight:
      return cost.backward_weight;
    default:
      return cost.full_backward();
  }
}

Clock::Clock(const Schedule& schedule, const StageGraph& graph, const CostModel& costs,
             const ActionIndex& index)
    : schedule_(schedule),
      costs_(costs),
      index_(index),
      is_lowered_(schedule.level() == Level::kLowered),
      table_(costs, schedule.num_stages()),
      transfers_(schedule, graph, costs),
      now_(schedule.lists().size(), 0),
      gathers_until_(schedule.lists().size(), 0),
      weights_at_(schedule.num_stages(), 0),
      is_over_cap_(schedule.lists().size(), false),
      leaving_values_(schedule.lists().size()) {
  const std::size_t ranks = schedule.lists().size();
  result_.ranks.resize(ranks);
  result_.timeline.resize(ranks);
  result_.memory.resize(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    result_.timeline[r].resize(schedule.lists()[r].size());
    double weights = 0;
    for (const StageId stage : schedule.placement().stages(Rank(static_cast<int32_t>(r)))) {
      weights += entry_for(costs.weights, stage);
    }
    result_.memory[r].push_back({0, 0});
    result_.ranks[r].first_start = -1;
    change_memory(r, std::nullopt, 0, weights);
  }
}

void Clock::execute(std::size_t rank, std::size_t offset, std::size_t length) {
  const Action action = schedule_.lists()[rank][offset];
  if (length > 1 || is_compute(action.type())) {
    compute(rank, offset, length);
    return;
  }
  const double start = now_[rank];
  if (action.type() == ActionType::kSendForward || action.type() == ActionType::kSendBackward) {
    send(rank, offset);
  } else if (is_send_wait(action.type())) {
    wait_for_send(rank, offset);
  } else if (action.type() == ActionType::kUnshard || action.type() == ActionType::kReshard) {
    unshard(rank, offset);
  }
  result_.timeline[rank][offset] = {start, now_[rank]};
}

void Clock::unshard(std::size_t rank, std::size_t offset) {
  const Action action = schedule_.lists()[rank][offset];
  const StageId stage = action.stage();
  const double memory = entry_for(costs_.gathered, stage);
  const bool begins = action.type() == ActionType::kUnshard;
  if (begins) {
    gathers_until_[rank] =
        std::max(gathers_until_[rank], now_[rank]) + entry_for(costs_.gather, stage);
    weights_at_[stage] = gathers_until_[rank];
  }
  if (memory > 0) change_memory(rank, offset, now_[rank], begins ? memory : -memory);
}

double Clock::end_of(uint32_t place, StageId stage) const {
  if (place == ActionIndex::kNowhere) return 0;  // was done before this piece of a schedule
  const auto rank = schedule_.placement().ranks()[stage].position();
  return result_.timeline[rank][place - index_.first_place(rank)].end;
}

Clock::Readiness Clock::ready(Action action) const {
  Readiness ready;
  const auto add = [&](double values, double made) {
    ready.values = std::max(ready.values, values);
    ready.made = std::max(ready.made, made);
  };
  const MicrobatchId m = action.microbatch();
  if (action.type() == ActionType::kBackwardWeight)
    return ready;  // the I of a W comes before it on the rank
  const bool is_forward = action.type() == ActionType::kForward;
  const Direction direction = is_forward ? Direction::kForward : Direction::kBackward;
  const auto ends =
      is_forward ? transfers_.in_edges(action.stage()) : transfers_.out_edges(action.stage());
  for (const Transfers::End& end : ends) {
    if (transfers_.is_elsewhere(end.edge)) {
      const Transfers::Transfer& transfer = transfers_.get(direction, end.edge, m);
      add(transfer.arrived, transfer.ready);
    }
  }
  return ready;
}

void Clock::compute(std::size_t rank, std::size_t offset, std::size_t length) {
  const ActionList& list = schedule_.lists()[rank];
  const std::size_t first = length == 1 ? offset : offset + 1;
  const std::size_t end = offset + length;
  RankStats& stats = result_.ranks[rank];

  Readiness all;
  for (std::size_t i = first; i < end; ++i) {
    const Readiness one = ready(list[i]);
    all.values = std::max(all.values, one.values);
    all.made = std::max(all.made, one.made);
  }
  double weights = 0;
  for (std::size_t i = first; i < end; ++i) {
    weights = std::max(weights, weights_at_[list[i].stage()]);
  }
  const double fed = std::max(now_[rank], all.values);
  const double start = std::max(fed, weights);
  stats.exposed_transfer += fed - std::max(now_[rank], std::min(all.made, fed));
  stats.exposed_gather += start - fed;
  if (stats.first_start < 0) stats.first_start = start;

  std::vector<Interval>& timeline = result_.timeline[rank];
  double part_start = start;
  double slot_end = start;
  for (std::size_t i = first; i < end; ++i) {
    const double duration = table_.duration(list[i]);
    timeline[i] = {part_start, part_start + duration};
    slot_end = std::max(slot_end, part_start + duration);
    part_start += (1 - costs_.overlap) * duration;
  }
  if (length > 1) timeline[offset] = {start, slot_end};

  account_memory(rank, first, end);
  now_[rank] = slot_end;
  stats.busy += slot_end - start;
  stats.last_end = slot_end;
  if (!is_lowered_) send_results(rank, first, end);
}

// Results are sent in the order of time, as a link does: the parts of an overlap may end in a
// different order than they have in the list.
void Clock::send_results(std::size_t rank, std::size_t first, std::size_t end) {
  leaving_.clear();
  for (std::size_t i = first; i < end; ++i) {
    leaving_.emplace_back(result_.timeline[rank][i].end, i);
  }
  if (leaving_.size() > 1) std::stable_sort(leaving_.begin(), leaving_.end());
  for (const auto& [time, i] : leaving_) {
    const Action action = schedule_.lists()[rank][i];
    if (action.type() == ActionType::kForward) {
      for (const Transfers::End& to : transfers_.out_edges(action.stage())) {
        send_along(rank, Direction::kForward, to, action.microbatch(), time);
      }
      hold_sent(rank, i, action.with_type(ActionType::kSendForward), now_[rank]);
    } else if (makes_input_gradients(action.type())) {
      for (const Transfers::End& to : transfers_.in_edges(action.stage())) {
        send_along(rank, Direction::kBackward, to, action.microbatch(), time);
      }
      hold_sent(rank, i, action.with_type(ActionType::kSendBackward), now_[rank]);
    }
  }
}

void Clock::account_memory(std::size_t rank, std::size_t first, std::size_t end) {
  const ActionList& list = schedule_.lists()[rank];
  const std::vector<Interval>& timeline = result_.timeline[rank];
  changes_.clear();
  for (std::size_t i = first; i < end; ++i) {
    const ActionType type = list[i].type();
    const StageCost& cost = table_.get(list[i]);
    if (type == ActionType::kForward) {
      changes_.push_back({timeline[i].start, cost.memory_forward, i});
      continue;
    }
    double freed = 0;
    if (makes_input_gradients(type)) freed += cost.memory_freed_by_input;
    if (makes_weight_gradients(type)) freed += cost.memory_freed_by_weight;
    if (freed > 0) changes_.push_back({timeline[i].end, -freed, i});
  }
  if (changes_.size() > 1) {  // the parts of an overlap: memory is freed before any is taken
    std::stable_sort(changes_.begin(), changes_.end(), [](const Change& a, const Change& b) {
      return std::pair(a.time, a.amount) < std::pair(b.time, b.amount);
    });
  }
  for (const Change& change : changes_) {
    change_memory(rank, change.offset, change.time, change.amount);
  }
}

void Clock::send(std::size_t rank, std::size_t offset) {
  const Action action = schedule_.lists()[rank][offset];
  const bool is_forward = action.type() == ActionType::kSendForward;
  const Direction direction = is_forward ? Direction::kForward : Direction::kBackward;
  const auto ends =
      is_forward ? transfers_.out_edges(action.stage()) : transfers_.in_edges(action.stage());
  for (const Transfers::End& to : ends) {
    send_along(rank, direction, to, action.microbatch(), now_[rank]);
  }
  hold_sent(rank, offset, action, now_[rank]);
}

void Clock::wait_for_send(std::size_t rank, std::size_t offset) {
  const Action wait = schedule_.lists()[rank][offset];
  const Action send = wait.with_type(send_of(wait.type()));
  const bool is_here =
      index_.find(send.type(), send.stage(), send.microbatch()) != ActionIndex::kNowhere;
  const std::optional<double> left = time_left(send);
  if (!is_here || !left) return;  // was sent before this piece of a schedule
  const double end = std::max(now_[rank], *left);
  result_.ranks[rank].exposed_transfer += end - now_[rank];
  now_[rank] = end;
  const double held = table_.get(send).memory_sent;
  if (held > 0) change_memory(rank, offset, end, -held);
}

std::optional<double> Clock::time_left(Action send) const {
  const bool is_forward = send.type() == ActionType::kSendForward;
  const Direction direction = is_forward ? Direction::kForward : Direction::kBackward;
  const auto ends =
      is_forward ? transfers_.out_edges(send.stage()) : transfers_.in_edges(send.stage());
  std::optional<double> left;
  for (const Transfers::End& to : ends) {
    if (!transfers_.is_elsewhere(to.edge)) continue;
    const double one = transfers_.get(direction, to.edge, send.microbatch()).left;
    left = std::max(left.value_or(0), one);
  }
  return left;
}

void Clock::hold_sent(std::size_t rank, std::size_t offset, Action send, double now) {
  const double held = table_.get(send).memory_sent;
  if (held <= 0) return;
  const std::optional<double> left = time_left(send);
  if (!left) return;
  const bool has_wait =
      index_.find(wait_of(send.type()), send.stage(), send.microbatch()) != ActionIndex::kNowhere;
  if (!has_wait && *left <= now) return;
  change_memory(rank, offset, now, held);
  if (!has_wait) leaving_values_[rank].emplace(*left, held);
}

void Clock::release_until(std::size_t rank, double time) {
  auto& values = leaving_values_[rank];
  while (!values.empty() && values.top().first <= time) {
    const auto [left, held] = values.top();
    values.pop();
    add_sample(rank, std::nullopt, left, -held);
  }
}

void Clock::send_along(std::size_t rank, Direction direction, const Transfers::End& end,
                       MicrobatchId m, double now) {
  if (!transfers_.is_elsewhere(end.edge)) return;
  double posted = 0;
  if (is_lowered_ && costs_.rendezvous) {
    const ActionType receive =
        direction == Direction::kForward ? ActionType::kRecvForward : ActionType::kRecvBackward;
    posted = end_of(index_.find(receive, end.stage, m), end.stage);
  }
  transfers_.send(direction, end.edge, m, now, posted);
  ++result_.transfers;
  ++result_.ranks[rank].transfers_sent;
}

void Clock::change_memory(std::size_t rank, std::optional<std::size_t> offset, double time,
                          double amount) {
  release_until(rank, time);
  add_sample(rank, offset, time, amount);
}

void Clock::add_sample(std::size_t rank, std::optional<std::size_t> offset, double time,
                       double amount) {
  std::vector<MemorySample>& samples = result_.memory[rank];
  const double memory = samples.back().memory + amount;
  if (samples.back().time == time) {
    samples.back().memory = memory;
  } else {
    samples.push_back({time, memory});
  }
  RankStats& stats = result_.ranks[rank];
  stats.peak_memory = std::max(stats.peak_memory, memory);
  if (!costs_.memory_cap || memory <= *costs_.memory_cap) return;
  if (is_over_cap_[rank]) return;
  is_over_cap_[rank] = true;
  result_.over_cap.push_back({Rank(static_cast<int32_t>(rank)), offset, time, memory});
}

Simulation Clock::finish() {
  double busy = 0;
  for (std::size_t r = 0; r < result_.ranks.size(); ++r) {
    release_until(r, std::numeric_limits<double>::infinity());
  }
  for (RankStats& stats : result_.ranks) {
    stats.first_start = std::max(stats.first_start, 0.0);
    result_.makespan = std::max(result_.makespan, stats.last_end);
    result_.span = std::max(result_.span, stats.last_end - stats.first_start);
    result_.peak_memory = std::max(result_.peak_memory, stats.peak_memory);
    result_.exposed_transfer += stats.exposed_transfer;
    result_.exposed_gather += stats.exposed_gather;
    busy += stats.busy;
  }
  if (result_.makespan > 0) {
    for (RankStats& stats : result_.ranks) stats.bubble = 1 - stats.busy / result_.makespan;
    result_.bubble = 1 - busy / (result_.makespan * static_cast<double>(result_.ranks.size()));
  }
  return std::move(result_);
}

}  // namespace stagecraft
