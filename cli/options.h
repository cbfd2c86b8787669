#pragma once

#include "cli/commands.h"

namespace stagecraft::cli {

/// Parses the command line. BadUsage, with a fix, for a wrong command line.
Command parse_command_line(int argc, char** argv);

}  // namespace stagecraft::cli
