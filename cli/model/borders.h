#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cli/model/costs.h"
#include "cli/model/module_tree.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/split_places.h"

namespace stagecraft::cli {

/// What stands behind the name of a module where the cut is at its end.
inline constexpr const char* kEnd = ":end";

/// The place before a node, where a stage could begin.
struct BorderFacts {
  std::size_t place = 0;  ///< number of the node
  std::string node;       ///< its name
  std::string module;     ///< whose operator it is; empty: the model's
  int64_t bytes = 0;      ///< that go over the border, a microbatch
  int64_t flops_before = 0;
  int64_t parameters_before = 0;  ///< elements of those that are read first before it
  /// What --split calls it, the shortest first: modules that begin here, then those that end here
  /// (`NAME:end`).
  std::vector<std::string> names = {};
  std::string why_not = {};  ///< empty where it can be cut

  bool is_legal() const { return why_not.empty(); }
  /// Whether a module of at most that depth begins here.
  bool begins_module(std::size_t depth) const;
};

/// All of them, from place 1 on.
std::vector<BorderFacts> borders_of(const Graph& graph, const NodeCosts& costs,
                                    const ModuleTree& tree, const SplitPlaces& places);

}  // namespace stagecraft::cli
