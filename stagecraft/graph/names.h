#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace stagecraft {

/// The characters of names of values, nodes and regions of a graph.
inline constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$#+*<>@~|^&;?!";

inline bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kNameCharacters) == std::string_view::npos;
}

/// The text with '_' instead of characters that a name cannot have.
std::string as_name(std::string text);

/// Whether the parser of graphs can read the text only as a size.
bool is_size_name(std::string_view text);

/// Unique names for the values of one graph.
class UniqueNames {
 public:
  /// The wish as as_name(), with a number appended if it is taken.
  std::string make(std::string wish);
  /// A name for the result of an operator: "addmm" for `aten::addmm`.
  std::string of_operator(std::string_view op);

 private:
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> counters_;
};

}  // namespace stagecraft
