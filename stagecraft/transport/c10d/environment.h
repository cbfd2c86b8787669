#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagecraft/transport/c10d/process_world.h"

namespace stagecraft::detail {

/// A variable of the environment; nothing where it is not set, or empty.
std::optional<std::string> find_variable(const char* name);
/// ArgumentError unless it is a whole number from `least` to `most`.
int64_t number_in(const char* name, const std::string& text, int64_t least, int64_t most);

/// STAGECRAFT_TOKEN, STAGECRAFT_LISTEN and STAGECRAFT_ADDRESS, as far as they are set.
void read_addresses(ProcessWorldOptions& options);

}  // namespace stagecraft::detail
