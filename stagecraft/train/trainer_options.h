#pragma once

#include "stagecraft/partition/pipe.h"
#include "stagecraft/runtime/loss.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft {

/// Throws ArgumentError if options do not fit each other or the pipe, or if there is no loss. The
/// schedule and the world are not looked at: TrainerWorld checks them.
void check(const TrainerOptions& options, const Pipe& pipe, const Loss& loss);

}  // namespace stagecraft
