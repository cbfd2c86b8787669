#pragma once

#include <cstdint>

#include "cli/train/command.h"

namespace stagecraft::cli {

/// Starts the ranks of a command as processes of this machine, `command.processes` of them, each
/// with the same command line, and watches them until they end. Prints their lines with the rank
/// before each. Passes SIGINT and SIGTERM on to them, once.
///
/// After a death all processes end. If restarts are left, all ranks start again and continue from
/// the newest checkpoint; a line says which rank died, why, and how many steps are lost. Processes
/// that end with bad usage are not restarted.
///
/// Returns the exit status. BadUsage if a launcher has started this process. Error if a process
/// cannot be started.
int train_on_processes(const TrainCommand& command, int argc, char** argv);

/// Tells the process that started this one, if there is one, that a step is done.
void tell_step(int64_t step);

}  // namespace stagecraft::cli
