#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace stagecraft {

/// What names of values, nodes and regions of a graph consist of.
inline constexpr std::string_view kNameCharacters =
    "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-/$#+*<>@~|^&;?!";

inline bool is_name(std::string_view text) {
  return !text.empty() && text.find_first_not_of(kNameCharacters) == std::string_view::npos;
}

/// The text with '_' for what no name may have.
std::string as_name(std::string text);

/// A word that a text of a graph takes for a size and nothing else.
bool is_size_name(std::string_view text);

/// Names for the values of one graph, none of them twice.
class UniqueNames {
 public:
  /// The wish, with '_' for what no name may have, and a number behind it where it is taken.
  std::string make(std::string wish);
  /// One for what an operator gives: `aten::addmm` to "addmm".
  std::string of_operator(std::string_view op);

 private:
  std::unordered_set<std::string> taken_;
  std::unordered_map<std::string, int> counters_;
};

}  // namespace stagecraft
