#include "stagecraft/runtime/record/time_use.h"

#include <algorithm>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/runtime/record/device_time.h"

namespace stagecraft {
namespace {

void check(const Recording& recording) {
  const Schedule& schedule = recording.schedule;
  require<ArgumentError>(recording.graph.num_stages() == std::max(schedule.num_stages(), 1),
                         "the stage graph has {} stages, but the schedule has {}",
                         recording.graph.num_stages(), schedule.num_stages());
  require<ArgumentError>(
      recording.ranks.size() == schedule.lists().size(),
      "the recording is of a different schedule: it has {} ranks, but the schedule has {}",
      recording.ranks.size(), schedule.lists().size());
  for (std::size_t r = 0; r < recording.ranks.size(); ++r) {
    const RankRecording& rank = recording.ranks[r];
    require<ArgumentError>(rank.actions.size() == schedule.lists()[r].size(),
                           "the recording is of a different schedule: rank {} has {} actions in "
                           "the recording, but {} in the schedule",
                           r, rank.actions.size(), schedule.lists()[r].size());
    require<ArgumentError>(rank.held.empty() || rank.held.size() == rank.actions.size(),
                           "rank {} has {} actions, but the memory of {}", r, rank.actions.size(),
                           rank.held.size());
    require<ArgumentError>(rank.device.empty() || rank.device.size() == rank.actions.size(),
                           "rank {} has {} actions, but device times of {}", r, rank.actions.size(),
                           rank.device.size());
    for (const RankRecording::Wait& wait : rank.waits) {
      require<ArgumentError>(wait.offset < rank.actions.size(),
                             "rank {} waited in action {}, but its list has {} actions", r,
                             wait.offset, rank.actions.size());
    }
  }
}

int64_t last_time(const RankRecording& rank) {
  int64_t last = 0;
  for (const auto& times : rank.actions) last = std::max({last, times.begin, times.end});
  for (const auto& wait : rank.waits) last = std::max({last, wait.begin, wait.end});
  return last;
}

/// The time in F, I, W and B, waits included, as stretches that do not touch.
std::vector<std::pair<int64_t, int64_t>> compute_stretches(std::span<const Action> list,
                                                           const RankRecording& rank) {
  std::vector<std::pair<int64_t, int64_t>> all;
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto& times = rank.actions[i];
    if (is_compute(list[i].type()) && times.begin >= 0) all.emplace_back(times.begin, times.end);
  }
  std::sort(all.begin(), all.end());
  std::vector<std::pair<int64_t, int64_t>> merged;
  for (const auto& [begin, end] : all) {
    if (!merged.empty() && begin <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, end);
    } else {
      merged.emplace_back(begin, end);
    }
  }
  return merged;
}

/// The offset of the first F, I, W or B that ran; the end of the list when none did.
std::size_t first_compute(std::span<const Action> list, const RankRecording& rank) {
  std::size_t i = 0;
  while (i < list.size() && !(is_compute(list[i].type()) && rank.actions[i].begin >= 0)) ++i;
  return i;
}

}  // namespace

ClosedRecording close(const Recording& recording) {
  check(recording);
  ClosedRecording closed{.ranks = in_device_time(recording)};
  for (const RankRecording& rank : closed.ranks) {
    closed.makespan = std::max(closed.makespan, last_time(rank));
  }
  for (RankRecording& rank : closed.ranks) {
    for (auto& times : rank.actions) {
      if (times.begin >= 0 && times.end < 0) times.end = closed.makespan;
    }
    for (auto& wait : rank.waits) {
      if (wait.end >= 0) continue;
      wait.end = closed.makespan;
      wait.sent = wait.end;  // no value arrived
      rank.actions[wait.offset].waited += wait.end - wait.begin;
    }
  }
  return closed;
}

TimeUse use_of_time(std::span<const Action> list, const RankRecording& rank, int64_t makespan) {
  TimeUse use;
  const auto stretches = compute_stretches(list, rank);
  for (const auto& [begin, end] : stretches) use.compute += end - begin;
  const std::size_t first = first_compute(list, rank);
  auto stretch = stretches.begin();
  for (const auto& wait : rank.waits) {
    const int64_t under_way_from = std::clamp(wait.sent, wait.begin, wait.end);
    const bool for_values = list[wait.offset].type() == ActionType::kForward;
    if (wait.what == RankRecording::Wait::For::kWeights) {
      use.weights += wait.end - wait.begin;
    } else {
      int64_t& cause = wait.offset <= first ? use.start_up
                       : for_values         ? use.activations
                                            : use.gradients;
      cause += under_way_from - wait.begin;
      use.exposed += wait.end - under_way_from;
      if (!for_values) use.exposed_gradients += wait.end - under_way_from;
    }
    while (stretch != stretches.end() && stretch->second <= wait.begin) ++stretch;
    if (stretch == stretches.end()) continue;
    use.compute -= std::max<int64_t>(
        std::min(stretch->second, wait.end) - std::max(stretch->first, wait.begin), 0);
  }
  use.run_out = makespan - last_time(rank);
  use.bubble = use.start_up + use.activations + use.gradients + use.run_out;
  use.other = makespan - use.compute - use.bubble - use.exposed - use.weights;
  return use;
}

}  // namespace stagecraft
