#pragma once

#include <cstddef>
#include <string>

#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// The positions where the model can be split: at modules down to `depth`, or everywhere for
/// SIZE_MAX.
std::string boundaries_text(const ProgramView& view, std::size_t depth);
/// The positions where the model cannot be split, and why.
std::string refused_text(const ProgramView& view);
/// The stages of every split. With `is_whole`, also the modules of each stage, and the values that
/// cross each boundary.
std::string splits_text(const ProgramView& view, bool is_whole);

}  // namespace stagecraft::cli
