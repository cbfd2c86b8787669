#pragma once

#include <string>
#include <vector>

#include "stagecraft/exported/payload.h"
#include "stagecraft/exported/program_schema.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// A program as a graph, and warnings about it.
struct ImportedProgram {
  GraphParts parts;
  std::vector<std::string> warnings;
};

/// Imports a program as the parts of a graph, which may contain dead code. Nodes of regions without
/// gradients or with autocast carry that state, cond keeps its branches, and numbers become
/// expressions of the inputs' sizes. GraphError, which names the node and its operator, for what a
/// graph cannot represent; FileError for a program that contradicts itself.
ImportedProgram import_program(const RawProgram& program, const Payload& payload);

}  // namespace stagecraft::exported
