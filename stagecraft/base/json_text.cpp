#include "stagecraft/base/json_text.h"

#include <nlohmann/json.hpp>

namespace stagecraft {
namespace {

template <typename Json>
std::string write(const Json& json, JsonStyle style) {
  const auto handler =
      style.repair ? Json::error_handler_t::replace : Json::error_handler_t::strict;
  return json.dump(style.indent, ' ', style.ascii, handler);
}

}  // namespace

nlohmann::json json_from_text(std::string_view text) {
  return nlohmann::json::parse(text);
}

nlohmann::ordered_json ordered_json_from_text(std::string_view text) {
  return nlohmann::ordered_json::parse(text);
}

nlohmann::json try_json_from_text(std::string_view text) {
  return nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
}

nlohmann::ordered_json try_ordered_json_from_text(std::string_view text) {
  return nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
}

std::string json_to_text(const nlohmann::json& json, JsonStyle style) {
  return write(json, style);
}

std::string json_to_text(const nlohmann::ordered_json& json, JsonStyle style) {
  return write(json, style);
}

}  // namespace stagecraft
