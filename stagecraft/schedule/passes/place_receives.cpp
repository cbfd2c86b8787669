#include "stagecraft/schedule/passes/place_receives.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/pair_flags.h"
#include "stagecraft/schedule/passes/pass_input.h"
#include "stagecraft/schedule/passes/unchecked.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {
namespace {

bool is_receive(ActionType type) {
  return type == ActionType::kRecvForward || type == ActionType::kRecvBackward;
}

bool has_compute(const Slot& slot) {
  return std::any_of(slot.parts().begin(), slot.parts().end(),
                     [](Action part) { return is_compute(part.type()); });
}

// What a compute action may have received: the RECV of the same stage and microbatch.
std::optional<Action> receive_of(Action action) {
  if (action.type() == ActionType::kForward) return action.with_type(ActionType::kRecvForward);
  if (makes_input_gradients(action.type())) return action.with_type(ActionType::kRecvBackward);
  return std::nullopt;
}

// A rank's list with every receive where it is wanted: directly in front of the slot of compute
// that comes `prefetch` slots of compute before its reader. A receive that nothing here reads keeps
// its place.
ActionList place_by_need(std::span<const Action> list, int32_t prefetch, PairFlags& present) {
  std::vector<Slot> slots;
  std::vector<std::size_t> compute;  // which of them compute
  for (const Slot& slot : SlotRange(list)) {
    const Action action = slot.actions().front();
    if (is_receive(action.type())) {
      const uint8_t flags = present.at(action.stage(), action.microbatch());
      const uint8_t readers = action.type() == ActionType::kRecvForward
                                  ? type_bit(ActionType::kForward)
                                  : static_cast<uint8_t>(type_bit(ActionType::kBackward) |
                                                         type_bit(ActionType::kBackwardInput));
      if ((flags & readers) != 0) continue;
    }
    if (has_compute(slot)) compute.push_back(slots.size());
    slots.push_back(slot);
  }

  ActionList placed;
  placed.reserve(list.size());
  std::size_t reader = 0;  // the next slot of compute whose receives are to be placed
  const auto place_for_next_reader = [&] {
    for (const Action part : slots[compute[reader]].parts()) {
      const std::optional<Action> receive = receive_of(part);
      if (!receive) continue;
      const uint8_t flags = present.at(part.stage(), part.microbatch());
      if ((flags & type_bit(receive->type())) != 0) placed.push_back(*receive);
    }
    ++reader;
  };
  std::size_t computed = 0;
  for (std::size_t i = 0; i < slots.size(); ++i) {
    if (computed < compute.size() && compute[computed] == i) {
      while (reader < compute.size() && reader <= computed + static_cast<std::size_t>(prefetch)) {
        place_for_next_reader();
      }
      ++computed;
    }
    placed.insert(placed.end(), slots[i].actions().begin(), slots[i].actions().end());
  }
  return placed;
}

// Runs the lists, and where all that are left wait for each other, posts a receive that one of them
// waits for ahead of its place.
class Untangler {
 public:
  Untangler(const Schedule& schedule, const StageGraph& graph, std::vector<ActionList> lists,
            PairFlags present)
      : rank_of_(schedule.placement().ranks()),
        needs_(schedule, graph, true),
        lists_(std::move(lists)),
        present_(std::move(present)),
        done_(schedule, "place_receives"),
        heads_(lists_.size(), 0),
        waits_(lists_.size()),
        sleepers_(lists_.size()),
        out_(lists_.size()) {
    for (std::size_t r = 0; r < lists_.size(); ++r) out_[r].reserve(lists_[r].size());
  }

  std::vector<ActionList> run() {
    std::size_t unfinished = lists_.size();
    for (std::size_t r = lists_.size(); r-- > 0;) ready_.push_back(r);
    while (unfinished > 0) {
      if (ready_.empty()) untangle();
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      if (go_on(rank)) --unfinished;
    }
    return std::move(out_);
  }

 private:
  struct Wait {
    Action action;  // that has to be done first
    std::size_t rank = 0;
  };

  bool is_done(Action action) {
    return (done_.at(action.stage(), action.microbatch()) & type_bit(action.type())) != 0;
  }

  // Until its list ends (true) or it has to wait (false).
  bool go_on(std::size_t rank) {
    const ActionList& list = lists_[rank];
    std::size_t& head = heads_[rank];
    while (head < list.size()) {
      const Action action = list[head];
      const std::size_t end = head + 1 + static_cast<std::size_t>(action.num_parts());
      if (is_receive(action.type()) && is_done(action)) {  // was posted ahead of its place
        ++head;
        continue;
      }
      for (std::size_t i = head; i < end; ++i) {
        if (!can_start(list[i], rank)) return false;
      }
      last_waiting_ = kNone;
      for (std::size_t i = head; i < end; ++i) {
        out_[rank].push_back(list[i]);
        finish(list[i], rank);
      }
      head = end;
    }
    return true;
  }

  bool can_start(Action action, std::size_t rank) {
    if (!has_microbatch(action.type())) return true;
    bool can = true;
    needs_.visit(action, [&](ActionType type, StageId stage) {
      const MicrobatchId m = action.microbatch();
      // A gradient comes from B or, without one, from I.
      if (type == ActionType::kBackward &&
          (present_.at(stage, m) & type_bit(ActionType::kBackward)) == 0) {
        type = ActionType::kBackwardInput;
      }
      if ((present_.at(stage, m) & type_bit(type)) == 0) return true;
      const Action needed(stage, type, m);
      if (is_done(needed)) return true;
      can = false;
      const auto other = static_cast<std::size_t>(rank_of_[stage.value()]);
      waits_[rank] = {needed, other};
      sleepers_[other].push_back(rank);
      last_waiting_ = rank;
      return false;
    });
    return can;
  }

  void finish(Action action, std::size_t rank) {
    if (!has_microbatch(action.type())) return;
    done_.at(action.stage(), action.microbatch()) |= type_bit(action.type());
    std::erase_if(sleepers_[rank], [&](std::size_t sleeper) {
      if (waits_[sleeper].action != action) return false;
      ready_.push_back(sleeper);
      return true;
    });
  }

  void untangle() {
    if (last_waiting_ == kNone) last_waiting_ = first_unfinished();
    // As many steps as there are ranks lead into the cycle; once round it finds the receive.
    std::size_t rank = last_waiting_;
    for (std::size_t i = 0; i < lists_.size(); ++i) rank = waits_[rank].rank;
    const std::size_t start = rank;
    do {
      const Wait wait = waits_[rank];
      if (is_receive(wait.action.type())) {
        out_[wait.rank].push_back(wait.action);
        finish(wait.action, wait.rank);
        return;
      }
      rank = wait.rank;
    } while (rank != start);
    throw ScheduleError("place_receives: the ranks wait for each other",
                        {to_string(waits_[start].action)});
  }

  std::size_t first_unfinished() const {
    std::size_t rank = 0;
    while (heads_[rank] == lists_[rank].size()) ++rank;
    return rank;
  }

  static constexpr std::size_t kNone = SIZE_MAX;

  std::span<const int32_t> rank_of_;
  Needs needs_;
  std::vector<ActionList> lists_;
  PairFlags present_;  // by type: is it in the schedule
  PairFlags done_;     // by type: was it done
  std::vector<std::size_t> heads_;
  std::vector<Wait> waits_;
  std::vector<std::vector<std::size_t>> sleepers_;
  std::vector<ActionList> out_;
  std::vector<std::size_t> ready_;
  std::size_t last_waiting_ = kNone;
};

}  // namespace

Schedule unchecked::place_receives(const Schedule& schedule, int32_t prefetch,
                                   const StageGraph& graph) {
  require_level(schedule, Level::kLowered, "place_receives");
  require<ArgumentError>(prefetch >= 0, "place_receives: prefetch is at least 0, got {}", prefetch);
  PairFlags present(schedule, "place_receives");
  for (const ActionList& list : schedule.lists()) {
    for (const Action action : list) {
      if (!has_microbatch(action.type())) continue;
      present.at(action.stage(), action.microbatch()) |= type_bit(action.type());
    }
  }
  std::vector<ActionList> lists;
  lists.reserve(schedule.lists().size());
  for (const ActionList& list : schedule.lists()) {
    lists.push_back(place_by_need(list, prefetch, present));
  }
  Untangler untangler(schedule, graph, std::move(lists), std::move(present));
  return {Level::kLowered, schedule.placement(), untangler.run()};
}

Schedule place_receives(const Schedule& schedule, int32_t prefetch, const StageGraph& graph) {
  require_level(schedule, Level::kLowered, "place_receives");
  verify_or_throw(schedule, graph, "place_receives", {.mode = VerifyMode::kPartial});
  return unchecked::place_receives(schedule, prefetch, graph);
}

Schedule place_receives(const Schedule& schedule, int32_t prefetch) {
  return place_receives(schedule, prefetch, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
