#include "stagecraft/schedule/slot.h"

namespace stagecraft {

std::string to_string(const Slot& slot) {
  if (!slot.is_overlap()) return to_string(slot.actions().front());
  std::string text = "(";
  for (const Action part : slot.parts()) {
    if (text.size() > 1) text += ';';
    text += to_string(part);
  }
  text += ')';
  text += to_string(ActionType::kOverlap);
  return text;
}

Slot slot_at(std::span<const Action> list, std::size_t offset) {
  const SlotRange slots(list);
  auto found = slots.begin();
  for (auto next = found; next != slots.end() && (*next).offset() <= offset; ++next) found = next;
  return *found;
}

}  // namespace stagecraft
