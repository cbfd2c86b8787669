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

bool ActionIndex::add_all(const Schedule& schedule) {
  const IndexedVector<StageId, Rank>& rank_of = schedule.placement().ranks();
  for (std::size_t r = 0; r < schedule.lists().size(); ++r) {
    const Rank rank(static_cast<int32_t>(r));
    const ActionList& list = schedule.lists()[r];
    for (std::size_t i = 0; i < list.size(); ++i) {
      if (list[i].is_idle() || list[i].is_overlap()) continue;
      const StageId stage = list[i].stage();
      if (!rank_of.contains(stage) || rank_of[stage] != rank) return false;
      if (!has_microbatch(list[i].type())) continue;
      if (!add(list[i], first_place(r) + static_cast<uint32_t>(i))) return false;
    }
  }
  return true;
}

}  // namespace stagecraft
