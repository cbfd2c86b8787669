#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/node_costs.h"

namespace stagecraft {

/// Follows the name of a module in a split text if the split point is at the end of the module.
inline constexpr const char* kModuleEnd = ":end";

/// A possible split point, before one node, and the costs of a split there.
struct Boundary {
  std::size_t position = 0;  ///< number of the node
  std::string node;          ///< its name
  std::string module;        ///< the module that called it; empty: the model
  int64_t bytes = 0;         ///< sent over the boundary for each microbatch
  int64_t flops_before = 0;
  int64_t parameters_before = 0;  ///< elements of parameters whose first read is before it
  /// Names for a split text, the shortest first: modules that begin here, then modules that end
  /// here (`NAME:end`).
  std::vector<std::string> names = {};
  std::string why_not = {};  ///< empty if the graph can be split here

  bool is_legal() const { return why_not.empty(); }
  /// Whether a module of at most that depth begins here.
  bool begins_module(std::size_t depth) const;
};

/// The boundaries before nodes 1 to n - 1. `costs` are those of the graph.
std::vector<Boundary> find_boundaries(const Graph& graph, const NodeCosts& costs);

}  // namespace stagecraft
