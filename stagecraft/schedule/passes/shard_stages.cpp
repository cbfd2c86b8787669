#include "stagecraft/schedule/passes/shard_stages.h"

#include <algorithm>
#include <cstddef>
#include <set>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/base/indexed_vector.h"
#include "stagecraft/schedule/passes/pass_input.h"

namespace stagecraft {
namespace {

constexpr std::size_t kNoUse = SIZE_MAX;

// The stages that a list uses from a slot on, in the order of their next use. The slot moves from
// the begin of the list to its end.
class NextStages {
 public:
  explicit NextStages(int32_t stages) : first_use_(stages, kNoUse) {}

  // Begins at the first slot of a list.
  void start(const std::vector<Slot>& slots) {
    uses_.clear();
    for (std::size_t i = 0; i < slots.size(); ++i) {
      for (const Action part : slots[i].parts()) {
        uses_.push_back({.stage = part.stage(), .slot = i, .next = kNoUse});
      }
    }
    for (std::size_t end = uses_.size(); end > 0;) {
      std::size_t begin = end;
      while (begin > 0 && uses_[begin - 1].slot == uses_[end - 1].slot) --begin;
      for (std::size_t use = begin; use < end; ++use) {
        uses_[use].next = first_use_[uses_[use].stage];
      }
      for (std::size_t use = end; use-- > begin;) first_use_[uses_[use].stage] = use;
      end = begin;
    }
    ahead_.clear();
    for (std::size_t use = 0; use < uses_.size(); ++use) {
      std::size_t& first = first_use_[uses_[use].stage];
      if (first == use) ahead_.insert(ahead_.end(), use);
    }
    for (const Use& use : uses_) first_use_[use.stage] = kNoUse;  // for the next list
    at_ = 0;
  }

  // The first `limit` stages, and all other stages of the last one's slot.
  void first(std::size_t limit, std::vector<StageId>& stages) const {
    stages.clear();
    std::size_t last_slot = kNoUse;
    for (const std::size_t use : ahead_) {
      if (stages.size() >= limit && uses_[use].slot != last_slot) return;
      stages.push_back(uses_[use].stage);
      last_slot = uses_[use].slot;
    }
  }

  void pass_slot() {
    for (const std::size_t slot = uses_[at_].slot; at_ < uses_.size() && uses_[at_].slot == slot;
         ++at_) {
      auto node = ahead_.extract(at_);
      if (node.empty() || uses_[at_].next == kNoUse) continue;
      node.value() = uses_[at_].next;
      ahead_.insert(std::move(node));
    }
  }

 private:
  struct Use {
    StageId stage;
    std::size_t slot = 0;
    std::size_t next = kNoUse;  // use of the stage, after this slot
  };

  std::vector<Use> uses_;  // of the list, in order
  IndexedVector<StageId, std::size_t> first_use_;
  std::set<std::size_t> ahead_;  // the next use of each stage that has one
  std::size_t at_ = 0;           // the first use of the slot
};

class ListSharder {
 public:
  explicit ListSharder(int32_t stages)
      : next_(stages), is_active_(stages, false), resident_at_(stages, 0) {}

  ActionList shard(std::span<const Action> list, int32_t max_active, int32_t lookahead) {
    std::vector<Slot> slots;
    slots.reserve(list.size());
    for (const Slot& slot : SlotRange(list)) {
      if (!slot.is_idle()) slots.push_back(slot);
    }
    ActionList out;
    out.reserve(list.size() + 16);
    next_.start(slots);
    for (const Slot& slot : slots) {
      next_.first(static_cast<std::size_t>(max_active), window_);
      ++now_;
      for (const StageId stage : window_) resident_at_[stage] = now_;
      reshard(out);
      if (lookahead != max_active) next_.first(static_cast<std::size_t>(lookahead), window_);
      for (const StageId stage : window_) {
        if (is_active_[stage]) continue;
        is_active_[stage] = true;
        active_.push_back(stage);
        out.emplace_back(stage, ActionType::kUnshard);
      }
      out.insert(out.end(), slot.actions().begin(), slot.actions().end());
      next_.pass_slot();
    }
    ++now_;
    reshard(out);
    return out;
  }

 private:
  // Reshards all active stages that are not resident now.
  void reshard(ActionList& out) {
    std::erase_if(active_, [&](StageId stage) {
      if (resident_at_[stage] == now_) return false;
      is_active_[stage] = false;
      out.emplace_back(stage, ActionType::kReshard);
      return true;
    });
  }

  NextStages next_;
  std::vector<StageId> window_;
  std::vector<StageId> active_;  // in the order in which they were unsharded
  IndexedVector<StageId, bool> is_active_;
  IndexedVector<StageId, uint64_t> resident_at_;  // the last slot at which it was resident
  uint64_t now_ = 0;                              // counts the slots of all lists
};

}  // namespace

std::vector<int32_t> resolve_lookahead(const UnshardLookahead& lookahead, int32_t ranks,
                                       int32_t max_active_stages) {
  if (const auto* given = std::get_if<std::vector<int32_t>>(&lookahead)) {
    require<ArgumentError>(given->size() == static_cast<std::size_t>(ranks),
                           "the lookahead has {} numbers, expected one for each of {} ranks",
                           given->size(), ranks);
    for (const int32_t number : *given) {
      require<ArgumentError>(number >= 1 && number <= max_active_stages,
                             "a lookahead is a number from 1 to {}, the most active stages, got {}",
                             max_active_stages, number);
    }
    return *given;
  }
  std::vector<int32_t> resolved;
  for (int32_t r = 0; r < ranks; ++r) {
    const bool is_full = std::get<Lookahead>(lookahead) == Lookahead::kFull;
    resolved.push_back(is_full ? max_active_stages : std::min(r + 2, max_active_stages));
  }
  return resolved;
}

Schedule shard_stages(const Schedule& schedule, int32_t max_active_stages,
                      const UnshardLookahead& lookahead) {
  require_level(schedule, Level::kCompute, "shard_stages");
  require<ArgumentError>(max_active_stages >= 1, "shard_stages: at least 1 active stage, got {}",
                         max_active_stages);
  require<ArgumentError>(!has_any(schedule, {ActionType::kUnshard, ActionType::kReshard}),
                         "shard_stages: the schedule has UNSHARD or RESHARD already");
  const std::vector<int32_t> ahead =
      resolve_lookahead(lookahead, schedule.num_ranks(), max_active_stages);
  ListSharder sharder(infer_placement(schedule.lists()).num_stages());
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
    lists.push_back(sharder.shard(schedule.lists()[r], max_active_stages, ahead[r]));
  }
  return {Level::kCompute, schedule.placement(), std::move(lists)};
}

}  // namespace stagecraft
