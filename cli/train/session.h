#pragma once

#include "cli/train/command.h"

namespace stagecraft::cli {

/// Executes the command and returns the exit status. Throws BadUsage for errors that are found
/// before training, and the library's errors for failures during training.
int train(TrainCommand command);

}  // namespace stagecraft::cli
