#include "stagecraft/graph/names.h"

#include <cstddef>

#include <fmt/format.h>

namespace stagecraft {

std::string UniqueNames::make(std::string wish) {
  for (char& c : wish) {
    if (kNameCharacters.find(c) == std::string_view::npos) c = '_';
  }
  if (wish.empty()) wish = "value";
  std::string name = wish;
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
