#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include <nlohmann/json.hpp>

namespace stagecraft::exported {

/// A list or an object in a text whose elements are handed out one by one and not kept.
struct JsonStream {
  std::vector<std::string> place;  ///< keys from the top: {"graph", "nodes"}
  /// `key` is empty for an element of a list. What it throws goes through.
  std::function<void(const std::string& key, const nlohmann::json& value)> take;
};

/// Parses a text that nobody vouches for, in time and memory that grow with it and no faster; lists
/// and objects of `streams` are empty in the result. FileError, without the file's name, when it is
/// no JSON, an object has a key twice, a text has a zero byte, or all this nests deeper than 1000.
nlohmann::json parse_json(std::string_view text, const std::string& what,
                          const std::vector<JsonStream>& streams = {});

}  // namespace stagecraft::exported
