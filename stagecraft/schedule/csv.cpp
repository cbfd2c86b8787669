#include "stagecraft/schedule/csv.h"

#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/schedule/slot_reader.h"

namespace stagecraft {
namespace {

constexpr std::string_view kSlot = "an action, such as 2F0 or (0F1;1B0)OVERLAP_F_B";

// CSV writes a field that exists but is empty as two quotes.
bool accept_quoted_idle(SlotReader& in) {
  if (!in.accept('"')) return false;
  if (!in.accept('"')) in.fail_expected("'\"': only an empty field is quoted");
  return true;
}

ActionList read_line(SlotReader& in) {
  ActionList list;
  in.skip_blanks();
  if (in.at_end() || in.accept_line_end()) return list;
  while (true) {
    in.skip_blanks();
    if (in.at_slot()) {
      in.read_slot(list);
    } else {
      accept_quoted_idle(in);
      list.emplace_back();
    }
    in.skip_blanks();
    if (in.accept(',')) continue;
    if (in.at_end() || in.accept_line_end()) return list;
    if (list.back().is_idle()) in.fail_expected(kSlot);
    in.fail_expected("',' or the end of the line");
  }
}

}  // namespace

Schedule parse_csv(std::string_view text) {
  SlotReader in(text);
  require<ArgumentError>(!in.at_end(), "a schedule has at least one line, got an empty text");
  std::vector<ActionList> lists;
  while (!in.at_end()) {
    lists.push_back(read_line(in));
    lists.back().shrink_to_fit();
  }
  Placement placement = infer_placement(lists);
  const Level level = infer_level(lists);
  return {level, std::move(placement), std::move(lists)};
}

std::string to_csv(const Schedule& schedule) {
  std::string text;
  text.reserve(static_cast<std::size_t>(schedule.num_actions()) * 8);
  for (const ActionList& list : schedule.lists()) {
    bool first = true;
    for (const Slot& slot : SlotRange(list)) {
      if (!first) text += ',';
      first = false;
      append_text(text, slot);
    }
    if (list.size() == 1 && list.front().is_idle()) text += "\"\"";
    text += '\n';
  }
  return text;
}

}  // namespace stagecraft
