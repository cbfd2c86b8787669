#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// JSON from text and to text. nlohmann's own `parse` and `dump` would be compiled anew in every
/// source that calls them; these are compiled once.

/// What nlohmann::json::parse gives or throws.
nlohmann::json json_from_text(std::string_view text);
nlohmann::ordered_json ordered_json_from_text(std::string_view text);

/// A value that `is_discarded()` for text that is not JSON.
nlohmann::json try_json_from_text(std::string_view text);
nlohmann::ordered_json try_ordered_json_from_text(std::string_view text);

struct JsonStyle {
  /// Blanks for each level; -1 puts all into one line.
  int indent = -1;
  /// Writes everything beyond ASCII as \u escapes.
  bool ascii = false;
  /// Replaces what is not UTF-8; otherwise that throws nlohmann's type_error.
  bool repair = false;
};
std::string json_to_text(const nlohmann::json& json, JsonStyle style = {});
std::string json_to_text(const nlohmann::ordered_json& json, JsonStyle style = {});

}  // namespace stagecraft
