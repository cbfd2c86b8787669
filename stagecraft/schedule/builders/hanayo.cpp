#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "stagecraft/schedule/builders/all.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft::builders {
namespace {

// The waves of Hanayo (Liu, Cheng, Zhou and You, SC'23). A wave goes through the ranks and back, so
// W waves are l = 2W stages a rank. The order of a rank's actions is that of a run in which a
// forward takes 1, a backward 2 and a transfer nothing, and in which an action of a microbatch
// starts as early as it can without delaying one of an earlier microbatch:
//
//   p = 3, W = 1, m = 3    rank 0   012..0aa1bb2cc..aa..bb..cc    012  forwards of microbatches
//                          rank 1   .0120.1.aa2bb.aaccbb..cc..    abc  their backwards
//                          rank 2   ..001122..aaaabbbbcccc....
constexpr int64_t kForwardTime = 1;
constexpr int64_t kBackwardTime = 2;

// The intervals in which a rank has no action yet.
class FreeTime {
 public:
  // Takes the first free interval of this length from `ready` on. Returns its start.
  int64_t take(int64_t ready, int64_t length) {
    auto gap = std::partition_point(gaps_.begin(), gaps_.end(),
                                    [&](const Gap& each) { return each.end < ready + length; });
    while (gap->end < std::max(gap->begin, ready) + length) ++gap;
    const int64_t start = std::max(gap->begin, ready);
    const Gap before{gap->begin, start};
    *gap = {start + length, gap->end};
    if (gap->is_empty()) {
      *gap = before;
      if (before.is_empty()) gaps_.erase(gap);
    } else if (!before.is_empty()) {
      gaps_.insert(gap, before);
    }
    return start;
  }

 private:
  struct Gap {
    int64_t begin;
    int64_t end;

    bool is_empty() const { return begin == end; }
  };
  std::vector<Gap> gaps_ = {{0, INT64_MAX}};  // ascending; the last one never ends
};

struct TimedAction {
  int64_t start;
  Action action;
};

Schedule make_hanayo(const Dims& dims) {
  Placement placement = Placement::v(dims.p, dims.stages());
  const auto ranks = static_cast<std::size_t>(dims.p);
  std::vector<FreeTime> free(ranks);
  std::vector<std::vector<TimedAction>> runs(ranks);
  for (std::vector<TimedAction>& run : runs) run.reserve(2 * std::size_t(dims.l) * dims.m);
  for (MicrobatchId m(0); m.value() < dims.m; ++m) {
    int64_t now = 0;
    const auto run = [&](StageId stage, ActionType type, int64_t time) {
      const auto rank = placement.ranks()[stage].position();
      const int64_t start = free[rank].take(now, time);
      runs[rank].push_back({start, Action(stage, type, m)});
      now = start + time;
    };
    for (int32_t s = 0; s < dims.stages(); ++s) run(StageId(s), ActionType::kForward, kForwardTime);
    for (int32_t s = dims.stages(); s-- > 0;) {
      run(StageId(s), ActionType::kBackward, kBackwardTime);
    }
  }
  std::vector<ActionList> lists(ranks);
  for (std::size_t r = 0; r < ranks; ++r) {
    std::sort(runs[r].begin(), runs[r].end(),
              [](const TimedAction& a, const TimedAction& b) { return a.start < b.start; });
    lists[r].reserve(runs[r].size());
    for (const TimedAction& each : runs[r]) lists[r].push_back(each.action);
    runs[r] = {};
  }
  return {Level::kCompute, std::move(placement), std::move(lists)};
}

}  // namespace

ScheduleKind hanayo() {
  return {.name = "Hanayo",
          .summary = "waves there and back through the ranks, two stages a rank for each wave",
          .make = make_hanayo,
          .default_stages_per_rank = 2,
          .stages_per_rank = {.min = 2}};
}

}  // namespace stagecraft::builders
