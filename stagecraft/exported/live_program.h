#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A program of torch.export in memory, over the tensors of the model that was exported.
struct LiveProgram {
  Graph graph;
  std::vector<std::string> warnings;  ///< as ExportedArchive::warnings
};

/// Reads a program from its text, as torch.export serialises it (`models/model.json` of an
/// archive). `tensors` are the model's own parameters, buffers and constants by their names, which
/// the graph shares. FileError for text that is not a program or a tensor that is missing;
/// GraphError as ExportedArchive::graph.
LiveProgram read_live_program(std::string_view json,
                              const std::map<std::string, at::Tensor>& tensors);

/// The graph over other tensors: those with these names replace its own. Shapes and types must be
/// the same (GraphError).
Graph with_tensors(const Graph& graph, const std::map<std::string, at::Tensor>& tensors);

}  // namespace stagecraft
