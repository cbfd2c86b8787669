#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "stagecraft/transport/join_options.h"

namespace stagecraft::detail {

/// The value of an environment variable; nothing if it is not set, or empty.
std::optional<std::string> find_variable(const char* name);
/// The integer in `text`. ArgumentError unless it is an integer from `least` to `most`; `name` is
/// for the message.
int64_t number_in(const char* name, const std::string& text, int64_t least, int64_t most);

/// Sets token, listen and address from STAGECRAFT_TOKEN, STAGECRAFT_LISTEN and STAGECRAFT_ADDRESS.
void read_addresses(JoinOptions& options);

}  // namespace stagecraft::detail
