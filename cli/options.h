#pragma once

#include "cli/commands.h"

namespace stagecraft::cli {

/// Reads the command line. BadUsage, with what to do instead, for one that is wrong.
Command parse_command_line(int argc, char** argv);

}  // namespace stagecraft::cli
