#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Where a graph is cut: each is the number of the node that the next stage begins with. Ascending.
using CutList = std::vector<std::size_t>;

/// The places between the nodes of a graph, and which of them may be cut. Place p lies before node
/// p; 1 to num_nodes - 1 are places.
class CutPlaces {
 public:
  explicit CutPlaces(const Graph& graph);

  std::size_t num_nodes() const { return bytes_.size(); }
  /// Empty where the graph may be cut there; otherwise why not: the cut would part a change in
  /// place from what it changes.
  const std::string& why_not(std::size_t place) const { return why_not_[place]; }
  bool is_legal(std::size_t place) const { return why_not_[place].empty(); }
  /// What goes from the nodes before a place to those behind it, at the sizes of the example. Model
  /// inputs do not count: they are given where they are needed.
  int64_t bytes(std::size_t place) const { return bytes_[place]; }

  /// The legal place from `first` to `last` with the fewest bytes; of several the nearest to
  /// `wish`. ArgumentError, with the reason, when none is legal; `what` names the cut.
  std::size_t best(std::size_t first, std::size_t last, std::size_t wish,
                   const std::string& what) const;

 private:
  std::vector<int64_t> bytes_;
  std::vector<std::string> why_not_;
};

/// The bytes of a value at the sizes of the example.
int64_t example_bytes(const Graph& graph, ValueId value);

}  // namespace stagecraft
