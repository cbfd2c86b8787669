#pragma once

#include <string>

namespace stagecraft {

/// All bytes of a file, or of standard input for "-". FileError, which names path and cause, if the
/// file cannot be read.
std::string read_file(const std::string& path);

}  // namespace stagecraft
