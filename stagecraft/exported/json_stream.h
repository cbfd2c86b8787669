#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace stagecraft::exported {

/// A list or an object whose elements are passed to a function one by one and are not kept.
struct JsonStream {
  std::vector<std::string> place;  ///< keys from the top: {"graph", "nodes"}
  /// `key` is empty for an element of a list. Its exceptions are passed on.
  std::function<void(const std::string& key, const nlohmann::json& value)> take;
};

/// Parses an untrusted text in linear time and memory. Lists and objects of `streams` are empty in
/// the result. FileError, without the name of the file, if the text is not JSON, an object has a
/// key twice, a string has a zero byte, or the nesting is deeper than 1000.
nlohmann::json parse_json(std::string_view text, const std::string& what,
                          const std::vector<JsonStream>& streams = {});

}  // namespace stagecraft::exported
