#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// What the nodes of a graph cost at the sizes of the example. A parameter counts for the first
/// node that reads it.
struct NodeCosts {
  explicit NodeCosts(const Graph& graph);

  std::vector<int64_t> flops;            ///< by node
  std::vector<int64_t> parameters;       ///< by node: elements
  std::vector<int64_t> parameter_bytes;  ///< by node
  int64_t total_flops = 0;
  int64_t total_parameters = 0;  ///< elements, including parameters that no node reads
};

}  // namespace stagecraft
