#include "stagecraft/viz/markup.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

#include <fmt/format.h>
#include <nlohmann/json.hpp>

#include "stagecraft/base/assert.h"
#include "stagecraft/base/json_text.h"

namespace stagecraft::viz {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

/// `text` with everything that is not UTF-8 replaced.
std::string clean_utf8(std::string_view text) {
  using Json = nlohmann::json;
  return json_from_text(json_to_text(Json(text), {.repair = true})).get<std::string>();
}

}  // namespace

std::string escape_xml(std::string_view text) {
  const std::string clean = clean_utf8(text);
  std::string out;
  for (std::size_t i = 0; i < clean.size(); ++i) {
    const char c = clean[i];
    const auto code = static_cast<unsigned char>(c);
    // U+FFFE and U+FFFF are UTF-8 but not XML.
    const bool last_of_plane = clean.compare(i, 2, "\xEF\xBF") == 0 && i + 2 < clean.size() &&
                               static_cast<unsigned char>(clean[i + 2]) >= 0xBE;
    if (last_of_plane) {
      out += kReplacement;
      i += 2;
    } else if (c == '&') {
      out += "&amp;";
    } else if (c == '<') {
      out += "&lt;";
    } else if (c == '>') {
      out += "&gt;";
    } else if (c == '"') {
      out += "&quot;";
    } else if (c == '\'') {
      out += "&#39;";
    } else if (code < 0x20 && c != '\t' && c != '\n' && c != '\r') {
      out += kReplacement;
    } else {
      out += c;
    }
  }
  return out;
}

std::string quote_json(std::string_view text) {
  using Json = nlohmann::json;
  std::string out;
  for (const char c : json_to_text(Json(text), {.ascii = true, .repair = true})) {
    if (c == '<') {
      out += "\\u003c";
    } else {
      out += c;
    }
  }
  return out;
}

std::string number_text(double value) {
  if (value == 0) return "0";
  if (std::abs(value) < 1e15 && std::abs(value - std::round(value)) < 1e-9 * std::abs(value)) {
    return fmt::format("{:.0f}", std::round(value));
  }
  if (std::abs(value) >= 1e5 && std::abs(value) < 1e15) return fmt::format("{:.1f}", value);
  return fmt::format("{:.6g}", value);
}

std::string exact_text(double value) {
  if (value == std::round(value) && std::abs(value) < 1e15) return fmt::format("{:.0f}", value);
  return fmt::format("{}", value);
}

std::string percent_text(double share) {
  return fmt::format("{:.1f} %", std::max(0.0, share) * 100);
}

double tick_step(double length, double count) {
  SC_ASSERT(length > 0 && count > 0);
  const double rough = length / count;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  const double times = rough / power;
  return power * (times <= 1 ? 1 : times <= 2 ? 2 : times <= 5 ? 5 : 10);
}

}  // namespace stagecraft::viz
