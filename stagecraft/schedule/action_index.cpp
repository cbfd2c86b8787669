#include "stagecraft/schedule/action_index.h"

#include "stagecraft/base/check.h"

namespace stagecraft {

ActionIndex::ActionIndex(const Schedule& schedule)
    : columns_(static_cast<std::size_t>(schedule.num_microbatches())) {
  std::size_t places = 0;
  for (const ActionList& list : schedule.lists()) {
    first_.push_back(static_cast<uint32_t>(places));
    places += list.size();
  }
  require<ArgumentError>(places < kNowhere, "at most {} actions, got {}", kNowhere - 1, places);
  const std::size_t pairs = static_cast<std::size_t>(schedule.num_stages()) * columns_;
  is_dense_ = pairs <= 2 * places + 64;
  if (is_dense_) rows_.resize(pairs);
}

}  // namespace stagecraft
