#pragma once

#include <string>
#include <vector>

#include "cli/model/command.h"
#include "cli/model/program_view.h"

namespace stagecraft::cli {

/// The text about one program that the command asks for.
std::string view_text(const ModelCommand& command, const std::vector<std::string>& programs,
                      const ProgramView& view);

/// The programs of an archive, a line each.
std::string list_text(const std::string& file, const std::vector<ProgramView>& views);

}  // namespace stagecraft::cli
