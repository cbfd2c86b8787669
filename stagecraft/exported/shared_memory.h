#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// Numbers the memory that values of a graph may share (GraphValue::memory). Values share memory by
/// the schemas of their operators, by a list of operators that may return their argument although
/// their schema does not declare it, and if they are states in one `piece` of a file. The result
/// may include values that do not share memory.
void find_shared_memory(GraphParts& parts,
                        const std::vector<std::pair<ValueId, std::string>>& pieces);

}  // namespace stagecraft::exported
