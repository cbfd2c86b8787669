#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A pass that removes slices of a whole dimension, and aliases; their readers read what they view.
/// Tensor indexing leaves such slices out at some sizes and has them at others, and returns an
/// alias if no slice is left. REQUIRES that all sizes of the graph are numbers.
GraphParts without_whole_slices(GraphParts parts);

}  // namespace stagecraft
