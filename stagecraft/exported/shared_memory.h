#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// Numbers the memory that values of a graph may share (GraphValue::memory). Values share memory if
/// the schemas of their operators say so, if they are argument and result of an operator in a list
/// of those that may return their argument without declaring it, or if they are states in one
/// `piece` of a file. Values that do not share memory may get the same number.
void find_shared_memory(GraphParts& parts,
                        const std::vector<std::pair<ValueId, std::string>>& pieces);

}  // namespace stagecraft::exported
