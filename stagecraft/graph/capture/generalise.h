#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Makes one graph for all sizes from traces of one model at the corners of a box: `traces[k]` ran
/// with size i at `sizes[i].example + 1` if bit i of k is set, otherwise at the example. Numbers
/// that differ become expressions. CaptureError names the operator whose numbers do not fit.
GraphParts generalise(std::span<const GraphParts> traces, std::vector<GraphSize> sizes);

/// Throws CaptureError, which names the operator, unless the graph at the given sizes equals the
/// trace.
void check_generalised(const GraphParts& graph, const GraphParts& trace,
                       std::span<const int64_t> sizes);

/// Compares two traces at the same sizes but with different elements. Dimensions that differ become
/// open. Throws CaptureError, which names the operator, if operators or their numbers differ.
void open_dims(GraphParts& trace, const GraphParts& other);

}  // namespace stagecraft
