#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// Numbers the memory that values of a graph may share (GraphValue::memory): what operators say of
/// their results in their schemas, what some return as it came in though their schemas are silent,
/// and states that lie in one `piece` of a file. May say that two share which do not.
void find_shared_memory(GraphParts& parts,
                        const std::vector<std::pair<ValueId, std::string>>& pieces);

}  // namespace stagecraft::exported
