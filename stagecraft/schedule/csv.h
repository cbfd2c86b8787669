#pragma once

#include <string>
#include <string_view>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Reads a schedule as PyTorch writes it: one line a rank, slots separated by commas, an empty
/// field for an idle slot, lines ended by "\n" or "\r\n", no header. Level and placement are
/// inferred (infer_level, infer_placement). A line without any field is a rank without slots. A
/// lone idle slot is written "" (two quotes), as CSV requires.
///
/// ParseError, with line and column, for anything that is not such a text; ArgumentError for a text
/// without any line. `verify` says whether the schedule can be executed.
Schedule parse_csv(std::string_view text);

/// The inverse: parse_csv(to_csv(s)) has the same lists as s. Every line ends with "\n".
std::string to_csv(const Schedule& schedule);

}  // namespace stagecraft
