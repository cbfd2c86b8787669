#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// Parses JSON. ParseError, with line and column, for anything else and for JSON that is nested
/// deeper than any file of ours; ArgumentError for a number that does not fit into a double.
nlohmann::json read_json(std::string_view text);

/// The start of a value's text, for messages.
std::string describe_json(const nlohmann::json& json);

}  // namespace stagecraft
