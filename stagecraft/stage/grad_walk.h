#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "stagecraft/stage/grad_edge.h"

namespace stagecraft {

/// How the graph of one forward divides into what leads to the stage's inputs and what leads to its
/// parameters alone:
///
///   output --> node --> node --> node --> input        the spine
///                |               |
///                v               v
///              weight          weight                  edges that leave it: their nodes are
///              borders
struct GradWalk {
  /// Every node from which an input can be reached, the inputs' own nodes excluded.
  std::vector<GradNode*> spine;
  /// Which of `spine` are on the border: they have an edge that leaves it.
  std::vector<bool> is_border;

  /// For each edge that was asked about, whether it leads to an input.
  std::vector<bool> root_reaches_input;
};

/// Walks from the roots. Linear in the size of the graph; nothing is changed or kept alive.
GradWalk walk_graph(std::span<const GradEdge> roots, std::span<const GradEdge> inputs);

/// Cuts every edge of the spine that leads to the spine or to an input. What is left of it leads to
/// parameters.
void cut_spine(const GradWalk& walk, std::span<const GradEdge> inputs);

}  // namespace stagecraft
