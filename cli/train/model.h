#pragma once

#include "cli/train/command.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

/// The trainer of a command: the model, cut and on its ranks. BadUsage, which names the options,
/// for what does not fit together.
Trainer make_trainer(TrainCommand& command);

}  // namespace stagecraft::cli
