#pragma once

#include <string_view>

#include "stagecraft/exported/size_table.h"

namespace stagecraft::exported {

/// Parses an expression for SizeTable::parse, which documents the forms. Adds sizes to the table
/// for results that need a rule. Throws Error with the position.
SizeExpr read_size(SizeTable& table, std::string_view text, const SizeTable::Words& words);

}  // namespace stagecraft::exported
