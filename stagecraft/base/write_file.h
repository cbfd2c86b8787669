#pragma once

#include <string>
#include <string_view>

namespace stagecraft {

/// Replaces the content of a file by `text`, all at once: until then, and if writing fails, the
/// file has its old content. The permissions of an existing file are kept, and a link is followed.
/// Devices and pipes are written in place. A pipe that its reader has closed is not an error.
/// Error, which names path and cause, if the file cannot be written.
void write_file(const std::string& path, std::string_view text);

}  // namespace stagecraft
