#pragma once

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The graph of the model in eval() mode: without dropout, and with the running statistics of batch
/// normalisation, which it does not update. Other changes of buffers remain; Trainer restores the
/// buffers after an evaluation. The result shares the tensors and has the same nodes, so it can be
/// split at the same positions.
Graph for_evaluation(const Graph& graph);

}  // namespace stagecraft
