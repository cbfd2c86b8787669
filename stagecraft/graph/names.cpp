#include "stagecraft/graph/names.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/text_cursor.h"

namespace stagecraft {

std::string as_name(std::string text) {
  for (char& c : text) {
    if (kNameCharacters.find(c) == std::string_view::npos) c = '_';
  }
  return text;
}

bool is_size_name(std::string_view text) {
  // Words that the text form reads as values.
  static const std::unordered_set<std::string_view> kTaken = {"None", "True", "False",
                                                              "inf",  "nan",  "undefined"};
  TextCursor in(text);
  return in.read_word() == text && !text.empty() && !kTaken.contains(text);
}

std::string UniqueNames::make(std::string wish) {
  wish = as_name(std::move(wish));
  if (wish.empty()) wish = "value";
  std::string name = wish;
  // A counter for each wish: a thousand nodes of one operator would otherwise try a thousand names
  // each.
  for (int& n = counters_[wish]; !taken_.insert(name).second;) {
    name = fmt::format("{}_{}", wish, ++n);
  }
  return name;
}

std::string UniqueNames::of_operator(std::string_view op) {
  const std::size_t colon = op.rfind(':');
  return make(std::string(colon == std::string_view::npos ? op : op.substr(colon + 1)));
}

}  // namespace stagecraft
