#include "stagecraft/partition/split_places.h"

#include <fmt/format.h>

#include "stagecraft/base/check.h"

namespace stagecraft {

std::string describe(const std::string& name, SplitPoint point) {
  return fmt::format("split at the {} of {}", point == SplitPoint::kBeginning ? "beginning" : "end",
                     name);
}

std::size_t nearest_legal(const CutPlaces& places, std::size_t place) {
  for (std::size_t d = 0; d < places.num_nodes(); ++d) {
    if (place + d > 0 && place + d < places.num_nodes() && places.is_legal(place + d)) {
      return place + d;
    }
    if (place > d && place - d < places.num_nodes() && places.is_legal(place - d)) return place - d;
  }
  return place;
}

std::size_t SplitPlaces::place(const std::string& name, SplitPoint point) const {
  const bool is_beginning = point == SplitPoint::kBeginning;
  const std::string what = describe(name, point);
  const ModuleExtents::Extent extent = modules_.get(name);
  const std::size_t end = cuts_.num_nodes();
  const std::size_t wish = is_beginning ? extent.first : extent.last + 1;
  require<ArgumentError>(wish > 0, "{}: the stage before it would be empty", what);
  require<ArgumentError>(wish < end, "{}: the stage after it would be empty", what);
  if (extent.is_exact) return nearest_legal(cuts_, wish);
  if (is_beginning) {
    const auto other = modules_.last_other_before(extent.first, name);
    return cuts_.best(other ? *other + 1 : 0, wish, wish, what);
  }
  const auto other = modules_.first_other_behind(extent.last, name);
  return cuts_.best(wish, other.value_or(end), wish, what);
}

}  // namespace stagecraft
