#pragma once

#include <string>
#include <vector>

#include "stagecraft/exported/payload.h"
#include "stagecraft/exported/program_schema.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// A program as a graph, and what a reader of it should know.
struct ImportedProgram {
  GraphParts parts;
  std::vector<std::string> warnings;
};

/// Turns a program into a graph: regions without gradients or with autocast become nodes that run
/// so, cond keeps its branches, numbers follow the inputs' sizes. GraphError, which names the node
/// and its operator, for what a graph cannot hold; FileError for a program that contradicts itself.
ImportedProgram import_program(const RawProgram& program, const Payload& payload);

}  // namespace stagecraft::exported
