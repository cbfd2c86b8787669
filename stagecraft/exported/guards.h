#pragma once

#include <string>
#include <vector>

#include "stagecraft/exported/size_table.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// Adds what was found to hold for the inputs when the model was exported, which is written as
/// Python: `L['x'].size()[1] % 2 == 0`. `names` are those of the arguments, by position and then by
/// keyword. What cannot be read is not checked, and returned.
std::vector<std::string> add_guards(const std::vector<std::string>& guards,
                                    const std::vector<std::string>& names, SizeTable& sizes,
                                    GraphParts& parts);

}  // namespace stagecraft::exported
