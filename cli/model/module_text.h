#pragma once

#include <cstddef>
#include <string>

#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// The modules as a tree, down to `depth`. Numbered ones in a row that are all alike are one line,
/// unless every one is asked for.
std::string modules_text(const ProgramView& view, std::size_t depth, bool is_every);

}  // namespace stagecraft::cli
