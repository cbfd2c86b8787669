#pragma once

#include <string>
#include <vector>

#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// Everything that is known about the programs, as JSON. docs/python_models.md describes the keys.
std::string views_json(const std::string& file, const std::vector<std::string>& programs,
                       const std::vector<ProgramView>& views);

}  // namespace stagecraft::cli
