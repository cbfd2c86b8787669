#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A pass that removes nodes whose results nothing reads. It keeps nodes that draw random numbers,
/// because later nodes would draw different numbers without them, nodes that change a state or an
/// input, and nodes that return nothing.
GraphParts without_dead_code(GraphParts parts);

}  // namespace stagecraft
