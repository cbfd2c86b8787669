#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// Parses JSON. ParseError with line and column on anything else and on what is nested deeper than
/// any file of ours; ArgumentError for a number that fits no double.
nlohmann::json read_json(std::string_view text);

/// The start of a value's text, for messages.
std::string describe_json(const nlohmann::json& json);

}  // namespace stagecraft
