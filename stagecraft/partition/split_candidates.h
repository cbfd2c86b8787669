#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Where a graph is split: the number of the first node of each stage except stage 0. Ascending.
using SplitPositions = std::vector<std::size_t>;

/// The possible split points of a graph, and which of them are legal. Position p lies before node
/// p. Positions are 1 to num_nodes - 1.
class SplitCandidates {
 public:
  explicit SplitCandidates(const Graph& graph);

  std::size_t num_nodes() const { return bytes_.size(); }
  /// Empty if the graph can be split there. Otherwise the reason: the split would separate a change
  /// in place from the value that it changes.
  const std::string& why_not(std::size_t position) const { return why_not_[position]; }
  bool is_legal(std::size_t position) const { return why_not_[position].empty(); }
  /// The bytes that cross a boundary at that position, at the sizes of the example. Model inputs do
  /// not count, because each stage gets the inputs that it reads.
  int64_t bytes(std::size_t position) const { return bytes_[position]; }

  /// The legal position from `first` to `last` with the fewest bytes. If there are several, the
  /// nearest to `wish`. ArgumentError, with the reason, if none is legal. `what` names the split
  /// point in the message.
  std::size_t best(std::size_t first, std::size_t last, std::size_t wish,
                   const std::string& what) const;

 private:
  std::vector<int64_t> bytes_;
  std::vector<std::string> why_not_;
};

/// The bytes of a value at the sizes of the example.
int64_t example_bytes(const Graph& graph, ValueId value);

}  // namespace stagecraft
