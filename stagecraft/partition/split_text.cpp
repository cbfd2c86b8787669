#include "stagecraft/partition/split_text.h"

#include <algorithm>
#include <cstddef>

#include "stagecraft/base/check.h"

namespace stagecraft {

Split parse_split(std::string_view text) {
  constexpr std::string_view kEnd = ":end";
  Split split;
  while (true) {
    const std::size_t comma = std::min(text.find(','), text.size());
    std::string_view name = text.substr(0, comma);
    const bool is_end = name.ends_with(kEnd);
    if (is_end) name.remove_suffix(kEnd.size());
    require<ArgumentError>(!name.empty(),
                           "expected names of modules separated by commas, got an empty name");
    split.points.emplace_back(name, is_end ? SplitPoint::kEnd : SplitPoint::kBeginning);
    if (comma == text.size()) return split;
    text.remove_prefix(comma + 1);
  }
}

}  // namespace stagecraft
