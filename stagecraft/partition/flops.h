#pragma once

#include <cstdint>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The floating-point operations of a node at the sizes of the example. Matrix products,
/// convolutions, attention and recurrent layers count two operations for each multiplication and
/// its addition. Views count 0. Other operators count one for each element of their results.
int64_t example_flops(const Graph& graph, const GraphNode& node);

}  // namespace stagecraft
