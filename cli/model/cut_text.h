#pragma once

#include <cstddef>
#include <string>

#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// The places where the model can be cut: at modules down to `depth`, or everywhere for SIZE_MAX.
std::string borders_text(const ProgramView& view, std::size_t depth);
/// Those where it cannot, and why.
std::string refused_text(const ProgramView& view);
/// The stages of every cut; `is_whole`: with the modules of each, and what goes over each border.
std::string cuts_text(const ProgramView& view, bool is_whole);

}  // namespace stagecraft::cli
