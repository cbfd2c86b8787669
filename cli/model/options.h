#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/model/command.h"

namespace stagecraft::cli {

/// Reads the command line, without the program's name; a text where help or the version was asked
/// for. BadUsage, with what to do instead, for one that is wrong.
std::variant<ModelCommand, std::string> parse_model_options(const std::vector<std::string>& words);

}  // namespace stagecraft::cli
