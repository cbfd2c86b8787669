#pragma once

#include <string>
#include <variant>
#include <vector>

#include "cli/model/command.h"

namespace stagecraft::cli {

/// Parses the command line, without the program's name. Returns a text if help or the version was
/// asked for. BadUsage, with a fix, for a wrong command line.
std::variant<ModelCommand, std::string> parse_model_options(const std::vector<std::string>& words);

}  // namespace stagecraft::cli
