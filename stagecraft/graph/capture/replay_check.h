#pragma once

#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Runs the model and its graph on the same values, and compares the results, the buffers, and the
/// gradients of arguments and parameters bit for bit. The values are those of the arguments in a
/// different order and scale, unless the model fails on them. Throws CaptureError. Afterwards
/// everything is restored.
///
/// Gradients are not compared if the model's own gradients differ from run to run, if its backward
/// fails, or if a parameter has hooks, which must not be called here.
void check_replay(const StageBody& model, const Graph& graph, const Arguments& arguments,
                  bool has_input_grads);

}  // namespace stagecraft
