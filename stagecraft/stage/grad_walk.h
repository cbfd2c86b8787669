#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stagecraft/stage/grad_edge.h"

namespace stagecraft {

/// Divides the graph of one forward into the part that leads to the stage's inputs and the part
/// that leads only to its parameters:
///
///   output --> node --> node --> node --> input        the spine
///                |               |
///                v               v
///              weight          weight                  border nodes are above weights
struct GradWalk {
  /// Every node from which an input can be reached, without the nodes of the inputs.
  std::vector<GradNode*> spine;
  /// Whether each node of `spine` is a border node: it has an edge that leaves the spine.
  std::vector<bool> is_border;

  /// Whether each root leads to an input.
  std::vector<bool> root_reaches_input;
};

/// Walks from the roots, in time linear in the size of the graph. Changes nothing and keeps nothing
/// alive.
GradWalk walk_graph(std::span<const GradEdge> roots, std::span<const GradEdge> inputs);

/// Removes every edge of the spine that leads to the spine or to an input. The remaining edges lead
/// to parameters.
void cut_spine(const GradWalk& walk, std::span<const GradEdge> inputs);

}  // namespace stagecraft
