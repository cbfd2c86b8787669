#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "cli/train/command.h"

namespace stagecraft::cli {

/// Parses the command line of stagecraft-train. Returns a text if help or the version was asked
/// for. BadUsage, with a fix, for a wrong command line.
std::variant<TrainCommand, std::string> parse_train_options(const std::vector<std::string>& words);

/// Whether --schedule is a file, not the name of a schedule.
bool is_schedule_file(const std::string& schedule);

/// BadUsage for options that contradict each other.
void check_train_command(const TrainCommand& command);

/// The options of a resumed run: those of the checkpoint, replaced by those of the current command
/// line.
TrainCommand take_up(const TrainCommand& now,
                     const std::map<std::string, std::vector<std::string>>& then);

}  // namespace stagecraft::cli
