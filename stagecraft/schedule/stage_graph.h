#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"

namespace stagecraft {

/// A stage, and a later stage that reads its output.
struct StageEdge {
  StageId from;
  StageId to;

  friend bool operator==(const StageEdge&, const StageEdge&) = default;
};

/// Which stage reads the output of which stage. In the forward, values go along the edges; in the
/// backward, gradients come back along them. An immutable value. The usual model is a chain; a skip
/// connection is one more edge.
///
///   StageGraph::chain(4).with_edges(parse_edges("0-2,0-3"));
class StageGraph {
 public:
  /// 0 -> 1 -> ... -> stages-1.
  static StageGraph chain(int32_t stages);
  /// These edges alone. ArgumentError for an edge that does not lead from an earlier stage to a
  /// later one, leaves [0, stages) or comes twice.
  static StageGraph of(int32_t stages, std::vector<StageEdge> edges);
  /// Adds edges. Edges that exist already are kept once.
  StageGraph with_edges(std::span<const StageEdge> edges) const;

  int32_t num_stages() const { return static_cast<int32_t>(first_consumer_.size()) - 1; }
  /// Ordered by `from`, then `to`.
  std::span<const StageEdge> edges() const { return edges_; }
  /// The stages that read the output of `stage`, ascending.
  std::span<const StageId> consumers(StageId stage) const {
    return group(consumers_, first_consumer_, stage);
  }
  /// The stages whose output `stage` reads, ascending.
  std::span<const StageId> producers(StageId stage) const {
    return group(producers_, first_producer_, stage);
  }

  friend bool operator==(const StageGraph&, const StageGraph&) = default;

 private:
  StageGraph(int32_t stages, std::vector<StageEdge> edges);
  static std::span<const StageId> group(const std::vector<StageId>& all,
                                        const std::vector<int32_t>& first, StageId stage) {
    const std::size_t s = stage.position();
    return std::span(all).subspan(first[s], first[s + 1] - first[s]);
  }

  std::vector<StageEdge> edges_;
  std::vector<StageId> consumers_;
  std::vector<int32_t> first_consumer_;
  std::vector<StageId> producers_;
  std::vector<int32_t> first_producer_;
};

/// Reads "0-2,1-3"; blanks around numbers are fine. ParseError, with the column, on anything else.
std::vector<StageEdge> parse_edges(std::string_view text);
std::string to_string(std::span<const StageEdge> edges);

}  // namespace stagecraft
