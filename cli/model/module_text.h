#pragma once

#include <cstddef>
#include <string>

#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// The modules as a tree, down to `depth`. Consecutive numbered modules that are alike are one
/// line, unless `is_every`.
std::string modules_text(const ProgramView& view, std::size_t depth, bool is_every);

}  // namespace stagecraft::cli
