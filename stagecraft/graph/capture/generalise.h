#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// One graph for all sizes, from traces of one model at the corners of a box: `traces[k]` ran with
/// size i at `sizes[i].example + 1` where bit i of k is set, else at the example. Numbers that
/// differ become expressions. CaptureError names the operator that does not follow.
GraphParts generalise(std::span<const GraphParts> traces, std::vector<GraphSize> sizes);

/// Throws CaptureError, which names the operator, unless the graph at the given sizes is the trace.
void check_generalised(const GraphParts& graph, const GraphParts& trace,
                       std::span<const int64_t> sizes);

/// Compares with another run of the model, at the same sizes but with other elements. Dimensions
/// that differ become open ones. Throws CaptureError, which names the operator, where it was called
/// with other numbers, or where another was called.
void open_dims(GraphParts& trace, const GraphParts& other);

}  // namespace stagecraft
