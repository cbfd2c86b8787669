#include "stagecraft/shard/flat_layout.h"

#include <algorithm>
#include <utility>

namespace stagecraft {
namespace {

int64_t rounded_up(int64_t number, int64_t unit) {
  return (number + unit - 1) / unit * unit;
}

}  // namespace

FlatLayout::FlatLayout(std::vector<int64_t> numels, int32_t members)
    : numels_(std::move(numels)), members_(members) {
  int64_t end = 0;
  for (const int64_t numel : numels_) {
    offsets_.push_back(end);
    end = rounded_up(end + numel, kShardBlock);
  }
  piece_ = rounded_up(end, kShardBlock * members) / members;
}

std::vector<ShardSegment> FlatLayout::segments(int32_t member, int64_t begin, int64_t end) const {
  const int64_t first = member * piece_;
  std::vector<ShardSegment> found;
  for (std::size_t i = 0; i < numels_.size(); ++i) {
    const int64_t from = std::max(offsets_[i], first + begin);
    const int64_t to = std::min(offsets_[i] + numels_[i], first + end);
    if (from >= to) continue;
    found.push_back(
        {.parameter = i, .begin = from - offsets_[i], .end = to - offsets_[i], .at = from - first});
  }
  return found;
}

}  // namespace stagecraft
