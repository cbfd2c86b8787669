#pragma once

#include <string_view>

#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Reads one action, such as "2F0", "1UNSHARD" or "3SEND_B1"; an empty text is idle. The inverse of
/// to_string(Action). ParseError, with the column, for anything else: a compute action or a
/// transfer without its microbatch, a microbatch where none belongs, anything after the action, an
/// overlap (which is more than one action).
Action parse_action(std::string_view text);

/// Reads slots separated by commas, such as "0F0,,(0F1;1B0)OVERLAP_F_B". Blanks around a slot are
/// fine. The inverse of to_string(SlotRange).
ActionList parse_actions(std::string_view text);

/// The slots joined by ','. No slots and one idle slot both give an empty text. A CSV distinguishes
/// them.
std::string to_string(const SlotRange& slots);

}  // namespace stagecraft
