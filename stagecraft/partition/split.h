#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/split_candidates.h"

namespace stagecraft {

/// The side of a module at which the model is split.
enum class SplitPoint : uint8_t { kBeginning, kEnd };

/// Chooses the split points of a graph.
using SplitPolicy = std::function<SplitPositions(const Graph& graph)>;

/// How a model is split: at points or by a policy, not both. With neither, it is split where
/// forward calls pipe_split().
///
///   Split{.points = {{"layers.4", SplitPoint::kBeginning}, {"head", SplitPoint::kBeginning}}}
///   Split{.policy = equal_cost(4)}
struct Split {
  /// The name of a module or of a scope(), and the side of it. ModuleExtents defines where a module
  /// begins and ends. Operators between two modules go to the side that leaves the fewest bytes to
  /// send.
  std::vector<std::pair<std::string, SplitPoint>> points = {};
  SplitPolicy policy = {};
};

/// Where `split` splits the graph. ArgumentError for points together with a policy, an unknown name
/// (the message has the nearest names), a stage without operators, and a position that is not
/// legal.
SplitPositions find_split_positions(const Graph& graph, const Split& split);

/// Split into `stages` stages with about the same bytes of parameters, floating-point operations,
/// or number of operators. Each split point is the position with the fewest bytes to send within a
/// tenth of a stage around the exact position. ArgumentError for stages < 1, or more stages than
/// legal positions allow.
SplitPolicy equal_parameters(int32_t stages);
SplitPolicy equal_cost(int32_t stages);
SplitPolicy equal_operators(int32_t stages);

/// Splits only where a module of at most `depth` begins. Of all such splits into `stages`, chooses
/// the one whose largest stage has the fewest floating-point operations, then the one with the
/// fewest bytes to send. A module `a.b.c` has depth 3. Depth 0: down to the outermost numbered
/// modules, such as `layers.4`, and at least 2. ArgumentError for stages < 1, or more stages than
/// such modules.
SplitPolicy best_at_modules(int32_t stages, std::size_t depth = 0);

}  // namespace stagecraft
