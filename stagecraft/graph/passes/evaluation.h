#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The graph of the model in eval() mode: without dropout. Batch normalisation uses its running
/// statistics and does not update them. Other changes of buffers remain; Trainer restores the
/// buffers after an evaluation. The result shares the tensors and has the same nodes, so it can be
/// split at the same positions.
Graph for_evaluation(const Graph& graph);

}  // namespace stagecraft
