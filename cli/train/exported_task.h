#pragma once

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "cli/train/task.h"
#include "stagecraft/partition/split.h"

namespace stagecraft::cli {

/// The exported model of --model.
///
/// On texts it must be a language model of bytes: it takes token ids [rows, length], optionally a
/// mask and labels (then its output has the loss), and returns logits. On examples as tensors it
/// takes the tensors with the names of its inputs, and its output has the loss. If the model was
/// exported for one context or batch only, the command gets these.
///
/// BadUsage, with a fix, for a different kind of model or data.
Task make_exported_task(TrainCommand& command, const TrainingData& data, const Split& split,
                        c10::Device device);

/// Fills in everything of the task except the pipes, for a model with this graph. Throws as
/// make_exported_task.
void describe_exported_task(TrainCommand& command, const TrainingData& data, const Graph& graph,
                            Task& task);

}  // namespace stagecraft::cli
