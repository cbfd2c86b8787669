#include "stagecraft/schedule/passes/shard_stages.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {
namespace {

// The stages that a list uses after a slot, in the order of their next use. The slot moves from the
// end of the list to its begin. A linked list, so that a stage moves to the front in constant time.
class NextStages {
 public:
  explicit NextStages(std::size_t stages) : links_(stages) {}

  void move_before(const Slot& slot) {
    const std::span<const Action> parts = slot.parts();
    for (std::size_t i = parts.size(); i-- > 0;) {
      const int32_t stage = parts[i].stage().value();
      if (first_ != stage) {
        if (links_[stage].is_linked) unlink(stage);
        link_in_front(stage);
      }
      links_[stage].slot = slot.position();
    }
  }

  // The first `limit` stages, and all others of the last one's slot.
  void first(std::size_t limit, std::vector<StageId>& stages) const {
    stages.clear();
    int64_t last_slot = -1;
    for (int32_t stage = first_; stage != kNone; stage = links_[stage].next) {
      if (stages.size() >= limit && links_[stage].slot != last_slot) return;
      stages.emplace_back(stage);
      last_slot = links_[stage].slot;
    }
  }

  // For the next list.
  void clear() {
    while (first_ != kNone) unlink(first_);
  }

 private:
  static constexpr int32_t kNone = -1;
  struct Link {
    int32_t previous = kNone;
    int32_t next = kNone;
    int64_t slot = 0;  // of the next use
    bool is_linked = false;
  };

  void unlink(int32_t stage) {
    Link& link = links_[stage];
    (link.previous == kNone ? first_ : links_[link.previous].next) = link.next;
    if (link.next != kNone) links_[link.next].previous = link.previous;
    link = {};
  }
  void link_in_front(int32_t stage) {
    links_[stage] = {.previous = kNone, .next = first_, .slot = 0, .is_linked = true};
    if (first_ != kNone) links_[first_].previous = stage;
    first_ = stage;
  }

  std::vector<Link> links_;  // by stage
  int32_t first_ = kNone;
};

bool contains(const std::vector<StageId>& stages, StageId stage) {
  return std::find(stages.begin(), stages.end(), stage) != stages.end();
}

// Writes a list from its end to its begin, and reverses it at last.
class BackwardWriter {
 public:
  explicit BackwardWriter(std::size_t expected) { list_.reserve(expected); }

  void slot(const Slot& slot) {
    list_.insert(list_.end(), slot.actions().rbegin(), slot.actions().rend());
  }
  // In front of the list so far: reshards the stages of `before` that are not in `after`, then
  // unshards those of `after` that are not in `before`.
  void change(std::vector<StageId> before, const std::vector<StageId>& after) {
    for (std::size_t i = after.size(); i-- > 0;) {
      if (!contains(before, after[i])) list_.emplace_back(after[i], ActionType::kUnshard);
    }
    std::sort(before.begin(), before.end());
    for (std::size_t i = before.size(); i-- > 0;) {
      if (!contains(after, before[i])) list_.emplace_back(before[i], ActionType::kReshard);
    }
  }
  ActionList take() {
    std::reverse(list_.begin(), list_.end());
    return std::move(list_);
  }

 private:
  ActionList list_;
};

ActionList shard_list(std::span<const Action> list, std::size_t limit, NextStages& next) {
  std::vector<Slot> slots;
  slots.reserve(list.size());
  for (const Slot& slot : SlotRange(list)) {
    if (!slot.is_idle()) slots.push_back(slot);
  }
  BackwardWriter out(list.size() + 16);
  std::vector<StageId> active;  // unsharded from the slot that was written last
  std::vector<StageId> wanted;
  for (std::size_t i = slots.size(); i-- > 0;) {
    next.move_before(slots[i]);
    next.first(limit, wanted);
    if (wanted != active) {
      out.change(wanted, active);
      std::swap(active, wanted);
    }
    out.slot(slots[i]);
  }
  out.change({}, active);
  next.clear();
  return out.take();
}

}  // namespace

Schedule shard_stages(const Schedule& schedule, int32_t max_active_stages) {
  require_level(schedule, Level::kCompute, "shard_stages");
  require<ArgumentError>(max_active_stages >= 1, "shard_stages: at least 1 active stage, got {}",
                         max_active_stages);
  require<ArgumentError>(!has_any(schedule, {ActionType::kUnshard, ActionType::kReshard}),
                         "shard_stages: the schedule has UNSHARD or RESHARD already");
  NextStages next(static_cast<std::size_t>(infer_placement(schedule.lists()).num_stages()));
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (const ActionList& list : schedule.lists()) {
    lists.push_back(shard_list(list, static_cast<std::size_t>(max_active_stages), next));
  }
  return {Level::kCompute, schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
