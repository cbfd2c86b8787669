#include "stagecraft/runtime/record/device_time.h"

#include <algorithm>
#include <unordered_map>

#include "stagecraft/base/assert.h"
#include "stagecraft/schedule/slot.h"

namespace stagecraft {
namespace {

// A device reports an event a few microseconds after the host recorded it, even if it was idle.
constexpr int64_t kEventDelay = 20'000;

/// When the devices executed each SEND.
std::unordered_map<Action, int64_t> sends_of(const Recording& recording) {
  std::unordered_map<Action, int64_t> sends;
  for (std::size_t r = 0; r < recording.ranks.size(); ++r) {
    const ActionList& list = recording.schedule.lists()[r];
    const RankRecording& rank = recording.ranks[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].type() != ActionType::kSendForward && list[i].type() != ActionType::kSendBackward)
        continue;
      const int64_t end = rank.device.empty() ? rank.actions[i].end : rank.device[i].end;
      if (end >= 0) sends[list[i]] = end;
    }
  }
  return sends;
}

/// When the last of the values that a slot takes from other ranks was sent; `otherwise` if that is
/// not known. A handler or a graph may take the values of all parts of an overlap at once.
int64_t sent_to(const Slot& slot, const StageGraph& graph,
                const std::unordered_map<Action, int64_t>& sends, int64_t otherwise) {
  int64_t sent = -1;
  for (const Action part : slot.parts()) {
    const bool is_forward = part.type() == ActionType::kForward;
    if (!is_forward && !makes_input_gradients(part.type())) continue;
    const ActionType type = is_forward ? ActionType::kSendForward : ActionType::kSendBackward;
    for (const StageId other :
         is_forward ? graph.producers(part.stage()) : graph.consumers(part.stage())) {
      const auto found = sends.find(Action(other, type, part.microbatch()));
      if (found != sends.end()) sent = std::max(sent, found->second);
    }
  }
  return sent < 0 ? otherwise : sent;
}

/// The action at `offset`, or the overlap that begins there.
Slot slot_of(std::span<const Action> list, std::size_t offset) {
  const std::size_t length = 1 + static_cast<std::size_t>(list[offset].num_parts());
  return {list.subspan(offset, length), 0, offset};
}

void take_device_times(RankRecording& rank) {
  rank.waits.clear();
  for (std::size_t i = 0; i < rank.actions.size(); ++i) {
    const RankRecording::DeviceTimes& device = rank.device[i];
    RankRecording::ActionTimes& times = rank.actions[i];
    times = {.begin = device.begin, .end = device.end, .waited = 0, .sent = times.sent};
  }
}

void add_wait(RankRecording& rank, std::size_t offset, const RankRecording::Wait& wait) {
  rank.waits.push_back(wait);
  rank.actions[offset].waited += wait.end - wait.begin;
}

/// The ranks take turns: all time that is not a rank's own compute is the compute of a different
/// rank.
void add_turns(std::span<const Action> list, RankRecording& rank) {
  int64_t done = 0;
  for (std::size_t i = 0; i < list.size(); ++i) {
    RankRecording::ActionTimes& times = rank.actions[i];
    if (!is_compute(list[i].type()) || times.begin < 0 || times.end < 0) continue;
    if (times.begin > done) {
      const RankRecording::Wait wait{
          .offset = i, .begin = done, .end = times.begin, .sent = times.begin};
      times.begin = done;
      add_wait(rank, i, wait);
    }
    done = std::max(done, times.end);
  }
}

}  // namespace

std::vector<RankRecording> in_device_time(const Recording& recording) {
  std::vector<RankRecording> ranks = recording.ranks;
  if (std::ranges::all_of(ranks, [](const RankRecording& rank) { return rank.device.empty(); })) {
    return ranks;
  }
  const std::unordered_map<Action, int64_t> sends = sends_of(recording);
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    RankRecording& rank = ranks[r];
    if (rank.device.empty()) continue;
    const ActionList& list = recording.schedule.lists()[r];
    take_device_times(rank);
    if (rank.is_replayed) {
      add_turns(list, rank);
      continue;
    }
    for (std::size_t i = 0; i < list.size(); ++i) {
      const RankRecording::DeviceTimes& device = rank.device[i];
      if (device.begin < 0 || device.ready < 0) continue;
      add_wait(rank, i,
               {.offset = i,
                .begin = device.begin,
                .end = device.ready,
                .sent = sent_to(slot_of(list, i), recording.graph, sends, device.ready)});
    }
  }
  return ranks;
}

HostTime host_time_of(std::span<const Action> list, const RankRecording& rank) {
  SC_ASSERT(rank.actions.size() == list.size() && rank.device.size() == list.size());
  HostTime host;
  int64_t done = 0;  // the device has executed everything that was launched
  for (std::size_t i = 0; i < list.size(); ++i) {
    const RankRecording::ActionTimes& launched = rank.actions[i];
    const RankRecording::DeviceTimes& device = rank.device[i];
    if (launched.begin < 0 || launched.end < 0 || device.begin < 0 || device.end < 0) continue;
    const int64_t gap = std::min(launched.begin, device.begin) - done;
    if (gap > kEventDelay) host.late += gap;
    done = std::max(done, device.end);
    if (!is_compute(list[i].type())) continue;
    host.compute += launched.end - launched.begin - launched.waited;
    if (device.end <= launched.end + kEventDelay) {
      host.launch_bound += device.end - std::max(device.begin, device.ready);
    }
  }
  return host;
}

}  // namespace stagecraft
