#pragma once

#include <map>
#include <string>
#include <variant>
#include <vector>

#include "cli/train/command.h"

namespace stagecraft::cli {

/// Reads the command line of stagecraft-train; a text where help or the version was asked for.
/// BadUsage, with what to do instead, for one that is wrong.
std::variant<TrainCommand, std::string> parse_train_options(const std::vector<std::string>& words);

/// Whether --schedule names a file, and no schedule.
bool is_schedule_file(const std::string& schedule);

/// BadUsage for options that contradict each other.
void check_train_command(const TrainCommand& command);

/// The options of a run that is taken up: those of then, but for what is given now.
TrainCommand take_up(const TrainCommand& now,
                     const std::map<std::string, std::vector<std::string>>& then);

}  // namespace stagecraft::cli
