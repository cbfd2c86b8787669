#pragma once

#include <string>
#include <string_view>

#include <nlohmann/json_fwd.hpp>

namespace stagecraft {

/// JSON from text and to text. nlohmann's own `parse` and `dump` would be compiled anew in every
/// source that calls them; these are compiled once.

/// Returns and throws the same as nlohmann::json::parse.
nlohmann::json json_from_text(std::string_view text);
nlohmann::ordered_json ordered_json_from_text(std::string_view text);

/// A value that `is_discarded()` for text that is not JSON.
nlohmann::json try_json_from_text(std::string_view text);
nlohmann::ordered_json try_ordered_json_from_text(std::string_view text);

struct JsonStyle {
  /// Spaces for each level; -1 writes everything on one line.
  int indent = -1;
  /// Writes everything beyond ASCII as \u escapes.
  bool ascii = false;
  /// Replaces bytes that are not UTF-8. Without this, such bytes throw nlohmann's type_error.
  bool repair = false;
};
std::string json_to_text(const nlohmann::json& json, JsonStyle style = {});
std::string json_to_text(const nlohmann::ordered_json& json, JsonStyle style = {});

}  // namespace stagecraft
