#pragma once

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft::cli {

/// Reads the plan of `--plan FILE` and sets ranks and microbatches from it. BadUsage if options
/// contradict it. Does nothing for `--plan auto` and without `--plan`.
void take_plan_file(TrainCommand& command);

/// Takes the number of replicas from the plan of `--plan FILE`, unless it is given: launched
/// processes are divided by it.
void take_planned_replicas(TrainCommand& command);

/// For `--plan auto`: measures the layers of the command's model, plans, and measures the planned
/// stages again. Called by all ranks of a world: rank 0 plans and all get the same plan. Then sets
/// split, schedule and recompute of the command. With replicas, the world has the ranks of all;
/// without a transport, all of them are threads of this process. Prints the table, on rank 0,
/// unless the command is quiet. BadUsage if nothing fits.
void make_train_plan(TrainCommand& command, const TrainingData& data, Transport* transport);

/// "predicted 646 ms a step, measured 650 ms (+0.6 %)".
std::string compare_with_plan(const SavedPlan& plan, double measured_milliseconds);

}  // namespace stagecraft::cli
