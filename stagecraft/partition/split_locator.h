#pragma once

#include <cstddef>
#include <string>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/split.h"
#include "stagecraft/partition/split_candidates.h"

namespace stagecraft {

/// Finds the positions of module split points in a graph. The constructor reads the whole graph, so
/// make it once for many points.
///
///   SplitLocator locator(graph);
///   locator.position("layers.4", SplitPoint::kBeginning);   // 212: before node 212
class SplitLocator {
 public:
  explicit SplitLocator(const Graph& graph) : candidates_(graph), modules_(graph) {}

  /// The position that find_split_positions takes for the point. ArgumentError for an unknown name,
  /// for a stage without nodes on one side, and if no position around the point is legal.
  std::size_t position(const std::string& name, SplitPoint point) const;

  const SplitCandidates& candidates() const { return candidates_; }
  const ModuleExtents& modules() const { return modules_; }

 private:
  SplitCandidates candidates_;
  ModuleExtents modules_;
};

/// The point in words, for messages: "split at the beginning of layers.4".
std::string describe(const std::string& name, SplitPoint point);

/// The position if it is legal, otherwise the nearest legal one. The position itself if none is
/// legal.
std::size_t nearest_legal(const SplitCandidates& candidates, std::size_t position);

}  // namespace stagecraft
