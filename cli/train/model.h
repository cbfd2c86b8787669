#pragma once

#include <string>

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "cli/train/task.h"
#include "stagecraft/train/trainer.h"

namespace stagecraft::cli {

/// Sets ranks, stages and microbatches of the command from its schedule file. BadUsage if options
/// contradict the file.
void fit_to_schedule(TrainCommand& command);

/// The model of a command, split. BadUsage, with the names of the options, if they do not fit each
/// other.
Task make_task(TrainCommand& command, const TrainingData& data);

/// A checksum of the operators of the model, for plans.
std::string graph_of(const Pipe& pipe);

/// The trainer of a command. `transport` is that of this rank, or null if ranks are threads of the
/// trainer.
Trainer make_trainer(const TrainCommand& command, const Task& task, Transport* transport);

}  // namespace stagecraft::cli
