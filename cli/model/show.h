#pragma once

#include <string>

#include "cli/model/command.h"

namespace stagecraft::cli {

/// What `stagecraft model` prints. BadUsage where a program of several has to be named,
/// ArgumentError for a program, module or number of stages that is not there, FileError for a bad
/// file, GraphError for a program that cannot run.
std::string show(const ModelCommand& command);

}  // namespace stagecraft::cli
