#pragma once

#include "cli/commands.h"

namespace CLI {
class App;
}

namespace stagecraft::cli {

/// Adds the subcommand `plan`. The command must outlive the app.
void add_plan(CLI::App& app, PlanCommand& command);

/// Adds the options of the search alone, for programs that plan as a part of their work.
void add_plan_search(CLI::App* app, PlanSearch& search, const char* group);

}  // namespace stagecraft::cli
