#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::cli {

/// What the nodes of a graph cost at the sizes of the example.
struct NodeCosts {
  explicit NodeCosts(const Graph& graph);

  std::vector<int64_t> flops;       ///< by node
  std::vector<int64_t> parameters;  ///< by node: elements of those that it is the first to read
  int64_t total_flops = 0;
  int64_t total_parameters = 0;  ///< those that nothing reads included
};

}  // namespace stagecraft::cli
