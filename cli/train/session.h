#pragma once

#include "cli/train/command.h"

namespace stagecraft::cli {

/// Trains as the command says and returns the exit status. Throws BadUsage for what can be known
/// before training, the library's errors for what goes wrong.
int train(TrainCommand command);

}  // namespace stagecraft::cli
