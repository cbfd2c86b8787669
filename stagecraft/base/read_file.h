#pragma once

#include <string>

namespace stagecraft {

/// All bytes of a file, or of standard input for "-". FileError, naming the path and the cause,
/// when it cannot be read.
std::string read_file(const std::string& path);

}  // namespace stagecraft
