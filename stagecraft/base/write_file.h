#pragma once

#include <string>
#include <string_view>

namespace stagecraft {

/// Writes all of `text` to a file, which appears whole or not at all: what was there before stays
/// until then, with its permissions; a link is followed. Devices and pipes are written in place,
/// and a pipe whose reader has gone is not an error. Error, naming the path and the cause, when it
/// cannot be written.
void write_file(const std::string& path, std::string_view text);

}  // namespace stagecraft
