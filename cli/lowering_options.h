#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/schedule/passes/lower.h"

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stagecraft::cli {

/// Adds --max-active-stages, --unshard-lookahead, --defer-reduction-waits and --limit-sends, which
/// are for schedules that are executed here, too. The lookahead stays a text: only its number of
/// ranks says whether it is right (parse_lookahead).
std::vector<CLI::Option*> add_pass_options(CLI::App* app, LowerOptions& options,
                                           std::optional<std::string>& lookahead);
/// Their names.
const std::vector<std::string>& pass_option_names();

/// The text of --unshard-lookahead for the lookahead that is found from measured times.
inline constexpr const char* kLeastLookahead = "least";

/// What --unshard-lookahead says. BadUsage for a wrong text, and for numbers that do not fit.
/// `is_measured`: it may be kLeastLookahead, which is everything until times are measured.
UnshardLookahead parse_lookahead(const std::string& text, int32_t ranks, int32_t max_active_stages,
                                 bool is_measured = false);

/// BadUsage, which names the option, for options that the target does not have: torch 2.13 has no
/// waits and no lookahead. `lookahead` is the text of --unshard-lookahead.
void check_target_options(LowerTarget target, const LowerOptions& options,
                          const std::optional<std::string>& lookahead);

}  // namespace stagecraft::cli
