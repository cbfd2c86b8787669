#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The same graph as the model's eval() would give it: without dropout, and with the running
/// statistics of batch normalisation instead of the batch's own, which it then does not update.
/// What else the model does to its buffers it still does: Trainer puts them back after an
/// evaluation. The graph shares its tensors and has the same nodes, so it is cut at the same
/// places.
Graph for_evaluation(const Graph& graph);

}  // namespace stagecraft
