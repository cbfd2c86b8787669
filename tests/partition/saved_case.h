#pragma once

#include <filesystem>
#include <string>
#include <vector>

#include "stagecraft/partition/pipe.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Saves a pipe as NAME.pipe, and beside it what it is called with and what it gives: the output,
/// which is a tensor, and the gradients of all parameters when the mean of its squares is the loss.
void save_case(const Pipe& pipe, const Arguments& arguments, const std::filesystem::path& folder,
               const std::string& name);

/// Loads them and runs the pipe; the first difference, bit for bit, or nothing.
std::string check_case(const std::filesystem::path& folder, const std::string& name);

}  // namespace stagecraft
