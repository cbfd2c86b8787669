#include "stagecraft/sim/critical_path.h"

#include <algorithm>
#include <optional>

namespace stagecraft {
namespace {

using Direction = Transfers::Direction;

class PathTracer {
 public:
  PathTracer(const Schedule& schedule, const ActionIndex& index, const Transfers& transfers,
             const Simulation& simulation)
      : schedule_(schedule), index_(index), transfers_(transfers), simulation_(simulation) {}

  std::vector<PathStep> trace() {
    std::vector<PathStep> path;
    std::optional<Place> at = last();
    while (at) {
      const Slot slot = slot_around(*at);
      PathStep step{Rank(static_cast<int32_t>(at->rank)), at->offset, PathStep::Cause::kStart};
      at = before(at->rank, slot, step.cause);
      path.push_back(step);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  struct Place {
    std::size_t rank = 0;
    std::size_t offset = 0;
  };

  const Interval& interval(std::size_t rank, std::size_t offset) const {
    return simulation_.timeline[rank][offset];
  }

  std::optional<Place> last() const {
    for (std::size_t r = 0; r < schedule_.lists().size(); ++r) {
      if (simulation_.ranks[r].last_end < simulation_.makespan) continue;
      const ActionList& list = schedule_.lists()[r];
      for (std::size_t i = list.size(); i-- > 0;) {
        if (is_compute(list[i].type()) && interval(r, i).end == simulation_.makespan) {
          return Place{r, i};
        }
      }
    }
    return std::nullopt;
  }

  // Slots are counted from the front of a list, and a path goes through many slots. So the places
  // of all slots of a list are computed once.
  Slot slot_around(const Place& place) {
    if (slot_of_.empty()) slot_of_.resize(schedule_.lists().size());
    std::vector<uint32_t>& slot_of = slot_of_[place.rank];
    const ActionList& list = schedule_.lists()[place.rank];
    if (slot_of.empty()) {
      slot_of.resize(list.size());
      for (const Slot& slot : SlotRange(list)) {
        for (std::size_t i = 0; i < slot.actions().size(); ++i) {
          slot_of[slot.offset() + i] = static_cast<uint32_t>(slot.offset());
        }
      }
    }
    const std::size_t first = slot_of[place.offset];
    const std::size_t length = 1 + static_cast<std::size_t>(list[first].num_parts());
    return {std::span(list).subspan(first, length), 0, first};
  }

  // The action that the slot had to wait for, and the cause.
  std::optional<Place> before(std::size_t rank, const Slot& slot, PathStep::Cause& cause) {
    const double start = interval(rank, slot.offset()).start;
    if (const std::optional<Place> previous = previous_on_rank(rank, slot.offset(), start)) {
      const Action action = schedule_.lists()[rank][previous->offset];
      cause = feeds(action, slot) ? PathStep::Cause::kValue : PathStep::Cause::kRank;
      return previous;
    }
    for (const Action part : slot.parts()) {
      if (const std::optional<Place> maker = maker_of_value(part, start)) {
        cause = PathStep::Cause::kTransfer;
        return maker;
      }
    }
    if (const std::optional<Place> maker = maker_of_awaited_send(rank, slot.offset(), start)) {
      cause = PathStep::Cause::kTransfer;
      return maker;
    }
    if (start > 0 && simulation_.ranks[rank].exposed_gather > 0) {
      if (const std::optional<Place> earlier = compute_before(rank, slot.offset())) {
        cause = PathStep::Cause::kGather;
        return earlier;
      }
    }
    cause = PathStep::Cause::kStart;
    return std::nullopt;
  }

  // The compute before `offset`.
  std::optional<Place> compute_before(std::size_t rank, std::size_t offset) const {
    const ActionList& list = schedule_.lists()[rank];
    while (offset-- > 0) {
      if (is_compute(list[offset].type())) return Place{rank, offset};
    }
    return std::nullopt;
  }

  // The compute before `offset` if it ended at `time`. For an overlap, the part that ended then.
  std::optional<Place> previous_on_rank(std::size_t rank, std::size_t offset, double time) {
    const ActionList& list = schedule_.lists()[rank];
    while (offset-- > 0) {
      if (!is_compute(list[offset].type())) continue;
      const Slot slot = slot_around({rank, offset});
      for (std::size_t i = slot.parts().size(); i-- > 0;) {
        const std::size_t part = slot.parts_offset() + i;
        if (interval(rank, part).end == time) return Place{rank, part};
      }
      return std::nullopt;
    }
    return std::nullopt;
  }

  // If the rank waited for a send before `offset`, until `time`: the action that made the value.
  std::optional<Place> maker_of_awaited_send(std::size_t rank, std::size_t offset,
                                             double time) const {
    const ActionList& list = schedule_.lists()[rank];
    while (offset-- > 0 && !is_compute(list[offset].type())) {
      const Action action = list[offset];
      if (!is_send_wait(action.type())) continue;
      const Interval& waited = interval(rank, offset);
      if (waited.end != time || waited.start == waited.end) continue;
      const uint32_t place =
          action.type() == ActionType::kWaitSendForward
              ? index_.find(ActionType::kForward, action.stage(), action.microbatch())
              : index_.find_gradient_maker(action.stage(), action.microbatch());
      if (place == ActionIndex::kNowhere) return std::nullopt;
      return Place{rank, place - index_.first_place(rank)};
    }
    return std::nullopt;
  }

  // Whether an action of the same rank makes a value that the slot needs.
  bool feeds(Action action, const Slot& slot) const {
    return std::any_of(slot.parts().begin(), slot.parts().end(), [&](Action part) {
      if (action.microbatch() != part.microbatch()) return false;
      if (action.stage() == part.stage()) {
        return part.type() == ActionType::kBackwardWeight
                   ? action.type() == ActionType::kBackwardInput
                   : part.type() != ActionType::kForward && action.type() == ActionType::kForward;
      }
      const bool is_forward = part.type() == ActionType::kForward;
      const bool same_kind =
          is_forward ? action.type() == ActionType::kForward
                     : makes_input_gradients(part.type()) && makes_input_gradients(action.type());
      const auto ends =
          is_forward ? transfers_.in_edges(part.stage()) : transfers_.out_edges(part.stage());
      return same_kind && std::any_of(ends.begin(), ends.end(), [&](const Transfers::End& end) {
               return end.stage == action.stage();
             });
    });
  }

  std::optional<Place> maker_of_value(Action action, double time) const {
    if (action.type() == ActionType::kBackwardWeight) return std::nullopt;
    const bool is_forward = action.type() == ActionType::kForward;
    const auto ends =
        is_forward ? transfers_.in_edges(action.stage()) : transfers_.out_edges(action.stage());
    const MicrobatchId m = action.microbatch();
    for (const Transfers::End& end : ends) {
      if (!transfers_.is_elsewhere(end.edge)) continue;
      const Direction direction = is_forward ? Direction::kForward : Direction::kBackward;
      if (transfers_.get(direction, end.edge, m).arrived != time) continue;
      const uint32_t place = is_forward ? index_.find(ActionType::kForward, end.stage, m)
                                        : index_.find_gradient_maker(end.stage, m);
      if (place == ActionIndex::kNowhere) continue;
      const auto rank = schedule_.placement().ranks()[end.stage].position();
      return Place{rank, place - index_.first_place(rank)};
    }
    return std::nullopt;
  }

  const Schedule& schedule_;
  const ActionIndex& index_;
  const Transfers& transfers_;
  const Simulation& simulation_;
  std::vector<std::vector<uint32_t>> slot_of_;
};

}  // namespace

std::vector<PathStep> trace_critical_path(const Schedule& schedule, const ActionIndex& index,
                                          const Transfers& transfers,
                                          const Simulation& simulation) {
  return PathTracer(schedule, index, transfers, simulation).trace();
}

}  // namespace stagecraft
