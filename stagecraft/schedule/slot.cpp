#include "stagecraft/schedule/slot.h"

namespace stagecraft {

std::string to_string(const Slot& slot) {
  std::string text;
  append_text(text, slot);
  return text;
}

void append_text(std::string& text, const Slot& slot) {
  if (!slot.is_overlap()) return append_text(text, slot.actions().front());
  text += '(';
  for (const Action part : slot.parts()) {
    if (text.back() != '(') text += ';';
    append_text(text, part);
  }
  text += ')';
  text += to_string(ActionType::kOverlap);
}

Slot slot_at(std::span<const Action> list, std::size_t offset) {
  const SlotRange slots(list);
  auto found = slots.begin();
  for (auto next = found; next != slots.end() && (*next).offset() <= offset; ++next) found = next;
  return *found;
}

}  // namespace stagecraft
