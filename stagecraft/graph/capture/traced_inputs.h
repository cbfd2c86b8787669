#pragma once

#include "stagecraft/graph/capture/traced_values.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Adds the inputs of a graph to `parts`, one for each leaf of `arguments`: tensors as values,
/// other leaves as they are. Returns what the model is called with instead of `arguments`. It has
/// copies of the tensors, with the same strides. `has_grads`: floating-point copies require
/// gradients.
Arguments trace_inputs(GraphParts& parts, TracedValues& values, const Arguments& arguments,
                       bool has_grads);

}  // namespace stagecraft
