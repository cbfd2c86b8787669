#pragma once

#include <c10/core/Device.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// The same graph on another device: its tensors are there (those that were, are the same tensors),
/// and so is everything that its operators make.
Graph move_to(const Graph& graph, c10::Device device);

}  // namespace stagecraft
