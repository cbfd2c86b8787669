#pragma once

#include <string>

#include "cli/model/command.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::cli {

/// Plans the pipeline of an exported model, from its FLOP and bytes, or measured on inputs of the
/// example's sizes. Writes the files of the command and returns the text to print. DoesNotFit if no
/// plan fits; BadUsage for options that do not fit the model.
std::string plan_model(const Graph& graph, const ModelCommand& command);

}  // namespace stagecraft::cli
