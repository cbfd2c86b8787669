#include "stagecraft/schedule/findings.h"

#include <fmt/format.h>

namespace stagecraft {

void Findings::keep_at(FindingKind kind, std::size_t rank, std::size_t offset,
                       std::string message) {
  const Action action = schedule_.lists()[rank][offset];
  kept_.push_back({kind,
                   Rank(static_cast<int32_t>(rank)),
                   slot_position(rank, offset),
                   to_string(action),
                   std::move(message),
                   {}});
}

int64_t Findings::slot_position(std::size_t rank, std::size_t offset) const {
  // Slots are counted from the front of a list. This is done once for each list, not for each
  // finding.
  std::vector<int64_t>& positions = positions_[rank];
  if (positions.empty()) {
    for (const Slot& slot : SlotRange(schedule_.lists()[rank])) {
      positions.insert(positions.end(), slot.actions().size(), slot.position());
    }
  }
  return positions[offset];
}

std::string Findings::slot_text(std::size_t rank, std::size_t offset) const {
  return fmt::format("slot {}", slot_position(rank, offset));
}

std::pair<std::size_t, std::size_t> Findings::locate(const ActionIndex& index,
                                                     uint32_t place) const {
  std::size_t rank = schedule_.lists().size() - 1;
  while (index.first_place(rank) > place) --rank;
  return {rank, place - index.first_place(rank)};
}

}  // namespace stagecraft
