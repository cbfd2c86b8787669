#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/graph.h"
#include "stagecraft/partition/cuts.h"

namespace stagecraft {

/// On which side of a module the model is cut.
enum class SplitPoint : uint8_t { kBeginning, kEnd };

/// From a graph to the places where it is cut.
using SplitPolicy = std::function<CutList(const Graph& graph)>;

/// How a model is cut. At most one of the two; with neither, it is cut where forward calls
/// pipe_split().
///
///   Split{.points = {{"layers.4", SplitPoint::kBeginning}, {"head", SplitPoint::kBeginning}}}
///   Split{.policy = equal_cost(4)}
struct Split {
  /// By module, or by the name of a scope(). A module begins and ends where ModuleExtents says;
  /// what lies between two modules goes to the side that leaves the fewest bytes to send.
  std::vector<std::pair<std::string, SplitPoint>> points = {};
  SplitPolicy policy = {};
};

/// Where that cuts the graph. ArgumentError for points together with a policy, a name that is not
/// there (with the nearest), a stage without operators, and a place that cannot be cut.
CutList find_cuts(const Graph& graph, const Split& split);

/// Into so many stages: with about the same bytes of parameters, the same floating-point
/// operations, or the same number of operators each. Of the places within a tenth of a stage around
/// the exact one, that with the fewest bytes to send is taken. ArgumentError for stages < 1 or more
/// than there are places.
SplitPolicy equal_parameters(int32_t stages);
SplitPolicy equal_cost(int32_t stages);
SplitPolicy equal_operators(int32_t stages);

/// Splits only where a module of at most `depth` begins: of these splits into `stages`, the one
/// whose largest stage has the fewest floating-point operations, then the fewest bytes to send. A
/// module `a.b.c` has depth 3. Depth 0: down to the outermost numbered modules, such as `layers.4`,
/// and at least 2. ArgumentError for stages < 1, or more stages than such modules.
SplitPolicy best_at_modules(int32_t stages, std::size_t depth = 0);

}  // namespace stagecraft
