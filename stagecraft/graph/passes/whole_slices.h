#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A pass that removes slices of a whole dimension, and aliases. Nodes that read such a view read
/// its base instead. Tensor indexing calls such slices at some sizes only, and returns an alias if
/// no slice is left. Without the pass, traces at different sizes would have different operators.
/// REQUIRES that all sizes of the graph are numbers.
GraphParts without_whole_slices(GraphParts parts);

}  // namespace stagecraft
