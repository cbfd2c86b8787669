#pragma once

#include <string>
#include <vector>

#include "cli/model/command.h"
#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// What was asked of one program, to read.
std::string view_text(const ModelCommand& command, const std::vector<std::string>& programs,
                      const ProgramView& view);

/// The programs of an archive, a line each.
std::string list_text(const std::string& file, const std::vector<ProgramView>& views);

}  // namespace stagecraft::cli
