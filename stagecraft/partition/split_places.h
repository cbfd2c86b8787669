#pragma once

#include <cstddef>
#include <string>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/cuts.h"
#include "stagecraft/partition/modules.h"
#include "stagecraft/partition/split.h"

namespace stagecraft {

/// Where the points of a Split lie in a graph. To ask for many, make it once: it looks at the whole
/// graph.
///
///   SplitPlaces places(graph);
///   places.place("layers.4", SplitPoint::kBeginning);   // 212: before node 212
class SplitPlaces {
 public:
  explicit SplitPlaces(const Graph& graph) : cuts_(graph), modules_(graph) {}

  /// The place that find_cuts takes for the point. ArgumentError for a name that is not there, a
  /// stage without nodes on one side, and where no place around it can be cut.
  std::size_t place(const std::string& name, SplitPoint point) const;

  const CutPlaces& cuts() const { return cuts_; }
  const ModuleExtents& modules() const { return modules_; }

 private:
  CutPlaces cuts_;
  ModuleExtents modules_;
};

/// "split at the beginning of layers.4", as messages have it.
std::string describe(const std::string& name, SplitPoint point);

/// The place itself, or the nearest that may be cut; the place where none may.
std::size_t nearest_legal(const CutPlaces& places, std::size_t place);

}  // namespace stagecraft
