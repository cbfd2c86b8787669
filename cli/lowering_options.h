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
/// also apply to schedules that this program executes. The lookahead stays a text, because it can
/// be checked only when the number of ranks is known (parse_lookahead).
std::vector<CLI::Option*> add_pass_options(CLI::App* app, LowerOptions& options,
                                           std::optional<std::string>& lookahead);
/// The names of these options.
const std::vector<std::string>& pass_option_names();

/// The text of --unshard-lookahead that asks for a lookahead from measured times.
inline constexpr const char* kLeastLookahead = "least";

/// The lookahead for the text of --unshard-lookahead. BadUsage for a wrong text, and for numbers
/// that do not fit. With `is_measured` the text may be kLeastLookahead, which unshards as far ahead
/// as allowed until times are measured.
UnshardLookahead parse_lookahead(const std::string& text, int32_t ranks, int32_t max_active_stages,
                                 bool is_measured = false);

/// BadUsage, which names the option, for options that the target lacks: torch 2.13 has no waits and
/// no lookahead. `lookahead` is the text of --unshard-lookahead.
void check_target_options(LowerTarget target, const LowerOptions& options,
                          const std::optional<std::string>& lookahead);

}  // namespace stagecraft::cli
