#include "stagecraft/schedule/passes/place_receives.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/list_runner.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/pair_flags.h"
#include "stagecraft/schedule/passes/pass_input.h"
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

// The receive of a compute action's input: the RECV of the same stage and microbatch.
std::optional<Action> receive_of(Action action) {
  if (action.type() == ActionType::kForward) return action.with_type(ActionType::kRecvForward);
  if (makes_input_gradients(action.type())) return action.with_type(ActionType::kRecvBackward);
  return std::nullopt;
}

// A rank's list with every receive `prefetch` slots of compute before its reader. A receive that no
// action of the list reads keeps its place.
ActionList place_by_need(std::span<const Action> list, int32_t prefetch, PairFlags& present) {
  std::vector<Slot> slots;
  std::vector<std::size_t> compute;  // the slots that compute
  for (const Slot& slot : SlotRange(list)) {
    const Action action = slot.actions().front();
    if (is_receive(action.type())) {
      const unsigned flags = present.at(action.stage(), action.microbatch());
      const unsigned readers =
          action.type() == ActionType::kRecvForward
              ? type_bit(ActionType::kForward)
              : type_bit(ActionType::kBackward) | type_bit(ActionType::kBackwardInput);
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
      const unsigned flags = present.at(part.stage(), part.microbatch());
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

// A receive in the cycle of ranks that wait for each other.
ListRunner::Wait find_awaited_receive(const Schedule& schedule, const ListRunner& runner) {
  // As many steps as there are ranks lead into the cycle. One round of the cycle finds the receive.
  std::size_t rank = runner.last_waiting();
  for (std::size_t i = 0; i < schedule.lists().size(); ++i) rank = runner.wait(rank).rank;
  const std::size_t start = rank;
  do {
    const ListRunner::Wait& wait = runner.wait(rank);
    if (is_receive(schedule.lists()[wait.rank][wait.offset].type())) return wait;
    rank = wait.rank;
  } while (rank != start);
  const ListRunner::Wait& wait = runner.wait(start);
  throw ScheduleError("place_receives: the ranks wait for each other",
                      {to_string(schedule.lists()[wait.rank][wait.offset])});
}

// Runs the lists. When all ranks that are left wait for each other, posts a receive that one of
// them waits for ahead of its place.
std::vector<ActionList> untangle(const Schedule& schedule, const StageGraph& graph) {
  ActionIndex index(schedule);
  index.add_all(schedule);
  const Needs needs(schedule, graph, Needs::Blocks::kSends);
  ListRunner runner(schedule, index, needs);
  std::vector<ActionList> out(schedule.lists().size());
  for (std::size_t r = 0; r < out.size(); ++r) out[r].reserve(schedule.lists()[r].size());
  const auto execute = [&](std::size_t rank, std::size_t offset, std::size_t length) {
    const Action* const slot = schedule.lists()[rank].data() + offset;
    out[rank].insert(out[rank].end(), slot, slot + length);
  };
  while (!runner.run(execute)) {
    const ListRunner::Wait wait = find_awaited_receive(schedule, runner);
    out[wait.rank].push_back(schedule.lists()[wait.rank][wait.offset]);
    runner.finish_ahead(wait);
  }
  return out;
}

}  // namespace

Schedule place_receives(const Schedule& schedule, int32_t prefetch, const StageGraph& graph,
                        Verified verified) {
  require_level(schedule, Level::kLowered, "place_receives");
  require<ArgumentError>(prefetch >= 0, "place_receives: prefetch is at least 0, got {}", prefetch);
  if (verified == Verified::kNo) {
    verify_or_throw(schedule, graph, "place_receives", {.mode = VerifyMode::kPartial});
  }
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
  const Schedule placed(Level::kLowered, schedule.placement(), std::move(lists));
  return {Level::kLowered, schedule.placement(), untangle(placed, graph)};
}

Schedule place_receives(const Schedule& schedule, int32_t prefetch) {
  return place_receives(schedule, prefetch, StageGraph::chain(std::max(schedule.num_stages(), 1)));
}

}  // namespace stagecraft
