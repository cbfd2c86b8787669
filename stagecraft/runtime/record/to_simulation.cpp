#include <algorithm>

#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/record/time_use.h"

namespace stagecraft {
namespace {

/// From the end of each action's last wait to its own end; overlaps are left to span_overlaps.
std::vector<Interval> own_intervals(const RankRecording& rank) {
  std::vector<int64_t> start;
  start.reserve(rank.actions.size());
  for (const auto& times : rank.actions) start.push_back(times.begin);
  for (const auto& wait : rank.waits) {
    start[wait.offset] = std::max(start[wait.offset], wait.end);
  }
  std::vector<Interval> timeline;
  timeline.reserve(rank.actions.size());
  for (std::size_t i = 0; i < rank.actions.size(); ++i) {
    const auto& times = rank.actions[i];
    timeline.push_back(times.begin < 0 ? Interval::not_run()
                                       : Interval{microseconds(std::min(start[i], times.end)),
                                                  microseconds(times.end)});
  }
  return timeline;
}

void span_overlaps(std::span<const Action> list, std::vector<Interval>& timeline) {
  for (const Slot& slot : SlotRange(list)) {
    if (!slot.is_overlap()) continue;
    const auto parts = std::span(timeline).subspan(slot.parts_offset(), slot.parts().size());
    Interval all = Interval::not_run();
    for (const Interval& part : parts) {
      if (!part.ran()) continue;
      all =
          all.ran() ? Interval{std::min(all.start, part.start), std::max(all.end, part.end)} : part;
    }
    timeline[slot.offset()] = all;
  }
}

class TransferCount {
 public:
  explicit TransferCount(const Recording& recording)
      : graph_(recording.graph),
        rank_of_(recording.schedule.placement().ranks()),
        is_lowered_(recording.schedule.level() == Level::kLowered) {}

  /// The values or gradients that an action which ran gave to other ranks.
  int64_t of(Action action) const {
    switch (action.type()) {
      case ActionType::kSendForward:
        return elsewhere(action.stage(), true);
      case ActionType::kSendBackward:
        return elsewhere(action.stage(), false);
      case ActionType::kForward:
        return is_lowered_ ? 0 : elsewhere(action.stage(), true);
      case ActionType::kBackwardInput:
      case ActionType::kBackward:
        return is_lowered_ ? 0 : elsewhere(action.stage(), false);
      default:
        return 0;
    }
  }

 private:
  int64_t elsewhere(StageId stage, bool forward) const {
    if (!rank_of_.contains(stage)) return 0;
    const auto others = forward ? graph_.consumers(stage) : graph_.producers(stage);
    return std::count_if(others.begin(), others.end(),
                         [&](StageId other) { return rank_of_[other] != rank_of_[stage]; });
  }

  const StageGraph& graph_;
  const IndexedVector<StageId, Rank>& rank_of_;
  bool is_lowered_;
};

/// The samples in the order of time. The parts of an overlap may be recorded in a different order.
std::vector<MemorySample> memory_of(std::span<const Action> list,
                                    const std::vector<Interval>& timeline,
                                    const RankRecording& rank) {
  if (rank.held.empty()) return {};
  const auto before = static_cast<double>(rank.held_before);
  std::vector<MemorySample> samples = {{0, before}};
  const auto add = [&](double time, int64_t held) {
    samples.push_back({std::max(time, samples.back().time), before + static_cast<double>(held)});
  };
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!timeline[i].ran() || rank.held[i].most < 0) continue;
    add(timeline[i].start, rank.held[i].most);
    add(timeline[i].end, rank.held[i].after);
  }
  return samples;
}

RankStats stats_of(std::span<const Action> list, const std::vector<Interval>& timeline,
                   const RankRecording& rank, int64_t makespan) {
  RankStats stats;
  bool is_first = true;
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (!is_compute(list[i].type()) || !timeline[i].ran()) continue;
    stats.first_start =
        is_first ? timeline[i].start : std::min(stats.first_start, timeline[i].start);
    stats.last_end = std::max(stats.last_end, timeline[i].end);
    is_first = false;
  }
  const TimeUse use = use_of_time(list, rank, makespan);
  stats.busy = microseconds(use.compute);
  stats.exposed_transfer = microseconds(use.exposed);
  stats.exposed_gather = microseconds(use.weights);
  if (makespan > 0) stats.bubble = 1 - stats.busy / microseconds(makespan);
  stats.peak_memory = static_cast<double>(rank.held_before + rank.peak_memory.value_or(0));
  return stats;
}

}  // namespace

Simulation to_simulation(const Recording& recording) {
  const ClosedRecording closed = close(recording);
  const TransferCount transfers(recording);
  Simulation result;
  result.makespan = microseconds(closed.makespan);
  result.memory.resize(closed.ranks.size());
  double busy = 0;
  for (std::size_t r = 0; r < closed.ranks.size(); ++r) {
    const ActionList& list = recording.schedule.lists()[r];
    std::vector<Interval>& timeline = result.timeline.emplace_back(own_intervals(closed.ranks[r]));
    span_overlaps(list, timeline);
    result.memory[r] = memory_of(list, timeline, closed.ranks[r]);
    RankStats stats = stats_of(list, timeline, closed.ranks[r], closed.makespan);
    // A step that failed has no peak of its own.
    for (const MemorySample& sample : result.memory[r]) {
      stats.peak_memory = std::max(stats.peak_memory, sample.memory);
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (closed.ranks[r].actions[i].begin >= 0) stats.transfers_sent += transfers.of(list[i]);
    }
    result.span = std::max(result.span, stats.last_end - stats.first_start);
    result.exposed_transfer += stats.exposed_transfer;
    result.exposed_gather += stats.exposed_gather;
    result.transfers += stats.transfers_sent;
    result.peak_memory = std::max(result.peak_memory, stats.peak_memory);
    busy += stats.busy;
    result.ranks.push_back(stats);
  }
  if (result.makespan > 0) {
    result.bubble = 1 - busy / (result.makespan * static_cast<double>(result.ranks.size()));
  }
  return result;
}

}  // namespace stagecraft
