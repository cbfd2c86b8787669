#pragma once

#include "cli/train/batches.h"
#include "cli/train/command.h"
#include "cli/train/task.h"
#include "stagecraft/partition/split.h"

namespace stagecraft::cli {

/// The model of --model, an archive of torch.export.
///
/// On texts it is a language model of bytes: it takes token ids [rows, length], perhaps labels
/// (then its output has the loss) and a mask, and gives logits. On examples as tensors it takes
/// those of its inputs' names, and its output has the loss. The command's context and batch become
/// what the model was exported for, where it takes no others.
///
/// BadUsage, with what to do instead, for a model or data of another kind.
Task make_exported_task(TrainCommand& command, const TrainingData& data, const Split& split,
                        c10::Device device);
}  // namespace stagecraft::cli
