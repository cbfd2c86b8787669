#include "stagecraft/schedule/text.h"

#include "stagecraft/schedule/slot_reader.h"

namespace stagecraft {

Action parse_action(std::string_view text) {
  SlotReader in(text);
  if (in.at_end()) return {};
  const Action action = in.read_action();
  if (!in.at_end()) in.fail_expected("the end of the action");
  return action;
}

ActionList parse_actions(std::string_view text) {
  SlotReader in(text);
  ActionList list;
  in.skip_blanks();
  if (in.at_end()) return list;
  do {
    in.skip_blanks();
    if (in.at_slot()) {
      in.read_slot(list);
    } else {
      list.emplace_back();
    }
    in.skip_blanks();
  } while (in.accept(','));
  if (!in.at_end()) in.fail_expected("',' or the end");
  return list;
}

std::string to_string(const SlotRange& slots) {
  std::string text;
  bool first = true;
  for (const Slot& slot : slots) {
    if (!first) text += ',';
    first = false;
    append_text(text, slot);
  }
  return text;
}

}  // namespace stagecraft
