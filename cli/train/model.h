#pragma once

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "cli/train/task.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

/// The command takes ranks, stages and microbatches from the schedule of its file. BadUsage for
/// others that were given.
void fit_to_schedule(TrainCommand& command);

/// The model of a command, cut. BadUsage, which names the options, for what does not fit together.
Task make_task(TrainCommand& command, const TrainingData& data);

/// The trainer of a command: the task's model on its ranks, or on this one. BadUsage likewise.
Trainer make_trainer(const TrainCommand& command, const Task& task, Transport* transport);

}  // namespace stagecraft::cli
