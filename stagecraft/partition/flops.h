#pragma once

#include <cstdint>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The floating-point operations of a node at the sizes of the example: those of products of
/// matrices, convolutions, attention and recurrent layers, where a product and its sum count as
/// two; one for each element of what other operators make; none for views.
int64_t example_flops(const Graph& graph, const GraphNode& node);

}  // namespace stagecraft
