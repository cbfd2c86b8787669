#pragma once

#include <string>
#include <vector>

#include "stagecraft/exported/size_table.h"
#include "stagecraft/graph/graph.h"

namespace stagecraft::exported {

/// Adds the conditions on the inputs that the export found, which are written in Python:
/// `L['x'].size()[1] % 2 == 0`. `names` are the names of the arguments, by position and then by
/// keyword. Returns the conditions that cannot be parsed; they are not checked.
std::vector<std::string> add_guards(const std::vector<std::string>& guards,
                                    const std::vector<std::string>& names, SizeTable& sizes,
                                    GraphParts& parts);

}  // namespace stagecraft::exported
