#pragma once

#include <string>
#include <vector>

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// The rows as a table for the terminal.
std::string table(const std::string& name, const std::vector<Row>& rows);

/// The quantities as text, one line for each.
std::string table(const std::vector<Quantity>& quantities);

/// Writes DIR/NAME.json and returns its path: {"name", "rows": [{"what", "reference_name", "ours",
/// "reference", "unit", "ratio", "goal" or null, "informative", "met" or null, "ours_spread",
/// "reference_spread", "noise"}], "quantities": [{"what", "value", "unit", "limit" or null, "met"
/// or null, "noise" or null}]}. Throws Error when it cannot be written.
std::string write_json(const std::string& name, const std::vector<Row>& rows,
                       const std::vector<Quantity>& quantities, const std::string& directory);

}  // namespace stagecraft::bench
