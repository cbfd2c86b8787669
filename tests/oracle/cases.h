#pragma once

#include <string>
#include <vector>

#include "tests/support/case_file.h"

namespace stagecraft::oracle {

/// The cases of one kind ("split", "merge", ...) that write_cases.py wrote. Throws Error when the
/// file is missing.
std::vector<Case> read_cases(const std::string& kind);

}  // namespace stagecraft::oracle
