#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Determines one size from a dimension of an input, after the sizes of the steps before it.
struct SizeStep {
  /// `dim` of an input that is an int, not a tensor: the size itself.
  static constexpr std::size_t kIsNumber = SIZE_MAX;

  int size = 0;
  std::size_t leaf = 0;
  std::size_t dim = 0;
};

/// How the inputs determine the sizes, in the order in which the steps must be taken.
std::vector<SizeStep> plan_sizes(const GraphParts& parts);

/// The sizes that the inputs determine, including those that follow by rules.
SizeSet known_sizes(const GraphParts& parts);

/// The known sizes, and all sizes that follow from them by rules.
SizeSet with_rules(const GraphParts& parts, SizeSet known);

/// The sizes that nodes and outputs read.
SizeSet read_sizes(const GraphParts& parts);

/// Whether the number is a truth value: a single size whose rule is a comparison.
bool is_truth(const GraphParts& parts, const SizeExpr& expr);

}  // namespace stagecraft
