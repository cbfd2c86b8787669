#include "stagecraft/schedule/json_input.h"

#include <algorithm>

#include <nlohmann/json.hpp>

#include "stagecraft/base/error.h"
#include "stagecraft/base/json_text.h"
#include "stagecraft/base/text_cursor.h"

namespace stagecraft {
namespace {

constexpr int kMaxDepth = 32;
constexpr std::size_t kMaxDescription = 60;

// The JSON library prints and compares values by recursion, which deep values would overflow.
void check_depth(std::string_view text) {
  int depth = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      in_string = c != '"';
    } else if (c == '"') {
      in_string = true;
    } else if (c == '[' || c == '{') {
      if (++depth > kMaxDepth) throw_parse_error("this JSON is nested too deeply", text, i);
    } else if (c == ']' || c == '}') {
      --depth;
    }
  }
}

}  // namespace

nlohmann::json read_json(std::string_view text) {
  check_depth(text);
  try {
    return json_from_text(text);
  } catch (const nlohmann::json::parse_error& error) {
    // `byte` counts from 1, and is one too many at the end of a text.
    const std::size_t position = std::min(error.byte, text.size());
    throw_parse_error("this is not valid JSON", text, position - (position > 0 ? 1 : 0));
  } catch (const nlohmann::json::out_of_range&) {
    throw ArgumentError("this JSON has a number that is too large");
  }
}

std::string describe_json(const nlohmann::json& json) {
  std::string text = json_to_text(json);
  if (text.size() > kMaxDescription) {
    text.resize(kMaxDescription);
    while (!text.empty() && (static_cast<unsigned char>(text.back()) & 0x80U) != 0) text.pop_back();
    text += "...";
  }
  return text;
}

}  // namespace stagecraft
