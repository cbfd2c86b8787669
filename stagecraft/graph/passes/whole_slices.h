#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Indexing leaves slices out that take all of a dimension, which at other sizes are there; where
/// none is left, an alias is. The graph, all of whose sizes are numbers, without such slices and
/// without aliases; what read them reads what they view.
GraphParts without_whole_slices(GraphParts parts);

}  // namespace stagecraft
