#include "stagecraft/partition/split_locator.h"

#include <fmt/format.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

std::string describe(const std::string& name, SplitPoint point) {
  return fmt::format("split at the {} of {}", point == SplitPoint::kBeginning ? "beginning" : "end",
                     name);
}

std::size_t nearest_legal(const SplitCandidates& candidates, std::size_t position) {
  for (std::size_t d = 0; d < candidates.num_nodes(); ++d) {
    if (position + d > 0 && position + d < candidates.num_nodes() &&
        candidates.is_legal(position + d)) {
      return position + d;
    }
    if (position > d && position - d < candidates.num_nodes() && candidates.is_legal(position - d))
      return position - d;
  }
  return position;
}

std::size_t SplitLocator::position(const std::string& name, SplitPoint point) const {
  const bool is_beginning = point == SplitPoint::kBeginning;
  const std::string what = describe(name, point);
  const ModuleExtents::Extent extent = modules_.get(name);
  const std::size_t end = candidates_.num_nodes();
  const std::size_t wish = is_beginning ? extent.first : extent.last + 1;
  require<ArgumentError>(wish > 0, "{}: the stage before it would be empty", what);
  require<ArgumentError>(wish < end, "{}: the stage after it would be empty", what);
  if (extent.is_exact) return nearest_legal(candidates_, wish);
  if (is_beginning) {
    const auto other = modules_.last_other_before(extent.first, name);
    return candidates_.best(other ? *other + 1 : 0, wish, wish, what);
  }
  const auto other = modules_.first_other_after(extent.last, name);
  return candidates_.best(wish, other.value_or(end), wish, what);
}

}  // namespace stagecraft
