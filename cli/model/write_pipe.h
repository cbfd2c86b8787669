#pragma once

#include <string>

#include "cli/model/command.h"

namespace stagecraft::cli {

/// Splits the model as the command says (stages, split, or the split of a plan file) and writes the
/// pipe to `command.pipe_out`. The model may be an exported archive or a graph that C++ has
/// captured and saved. Returns the table of the stages. Throws what `show` throws.
std::string write_pipe(const ModelCommand& command);

}  // namespace stagecraft::cli
