#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// What a pass ends with: drops the constants that nothing reads and the values that nothing makes,
/// and numbers values and shared memory anew, in the order in which they are made.
GraphParts compact(GraphParts parts);

}  // namespace stagecraft
