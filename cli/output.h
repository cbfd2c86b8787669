#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "stagecraft/base/text_table.h"

namespace stagecraft::cli {

/// Writes all of `text` to the file, or to standard output for "-". A file appears only when it is
/// complete; an older file stays until then. BadUsage if it cannot be written. A pipe that the
/// reader has closed is not an error.
void write_output(const std::string& path, std::string_view text);

/// The width of the terminal that standard output goes to; nothing if it is not a terminal.
std::optional<int32_t> terminal_columns();

/// Prints "stagecraft: <message>" on standard error. The message is always printed as one line.
void print_error(std::string_view message);

}  // namespace stagecraft::cli
