#pragma once

#include <functional>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A pass over a graph: takes the parts and returns the changed parts. A pass may leave values that
/// no node makes and constants that nothing reads.
using GraphPass = std::function<GraphParts(GraphParts)>;

/// Runs a pass, compacts its result and verifies it. Throws what the pass throws, and GraphError if
/// verify() refuses the result.
Graph run_pass(GraphParts parts, const GraphPass& pass);

/// Drops constants that nothing reads and values that nothing makes. Renumbers values and shared
/// memory in the order in which they are made.
GraphParts compact(GraphParts parts);

}  // namespace stagecraft
