#pragma once

#include <string>

#include "cli/model/command.h"

namespace stagecraft::cli {

/// The text that `stagecraft model` prints. BadUsage if one of several programs must be named,
/// ArgumentError for a program, module or number of stages that does not exist, FileError for a bad
/// file, GraphError for a program that cannot run.
std::string show(const ModelCommand& command);

}  // namespace stagecraft::cli
