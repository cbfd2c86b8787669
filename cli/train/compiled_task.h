#pragma once

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "cli/train/task.h"

namespace stagecraft::cli {

/// Whether --model is a package of compiled stages (.scp).
bool is_package(const TrainCommand& command);

/// The compiled stages of --model. The split, the types and the sizes are those of the package.
/// Everything else is as in make_exported_task. BadUsage for options that contradict the package.
Task make_compiled_task(TrainCommand& command, const TrainingData& data, c10::Device device);

}  // namespace stagecraft::cli
