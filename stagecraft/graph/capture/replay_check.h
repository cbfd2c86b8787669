#pragma once

#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Runs the model and its graph on the same values, the arguments' in another order and scale
/// unless the model fails on those, and compares bit for bit what they return, what they leave in
/// buffers, and the gradients of arguments and parameters. Throws CaptureError. Afterwards
/// everything is as before.
///
/// Gradients are not judged where they cannot be: where the model's own differ from run to run, its
/// backward fails, or a parameter has hooks, which this must not call.
void check_replay(const StageBody& model, const Graph& graph, const Arguments& arguments,
                  bool has_input_grads);

}  // namespace stagecraft
