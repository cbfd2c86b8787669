#include "stagecraft/schedule/schedule.h"

#include <algorithm>
#include <optional>
#include <utility>

#include "stagecraft/base/check.h"

namespace stagecraft {

std::string_view to_string(Level level) {
  return level == Level::kCompute ? "compute" : "lowered";
}

Schedule::Schedule(Level level, Placement placement, std::vector<ActionList> lists)
    : level_(level), placement_(std::move(placement)), lists_(std::move(lists)) {
  require<ArgumentError>(lists_.size() == static_cast<std::size_t>(placement_.num_ranks()),
                         "the placement has {} ranks, but there are {} lists of actions",
                         placement_.num_ranks(), lists_.size());
  int32_t last_microbatch = -1;
  for (std::size_t r = 0; r < lists_.size(); ++r) {
    int32_t parts_due = 0;
    for (const Action action : lists_[r]) {
      const ActionType type = action.type();
      if (parts_due > 0) {
        if (!is_compute(type)) {
          throw ArgumentError(fmt::format(
              "rank {}: the parts of an overlap are F, I, W or B, got '{}'", r, to_string(action)));
        }
        --parts_due;
      } else if (type == ActionType::kOverlap) {
        parts_due = action.num_parts();
        require<ArgumentError>(parts_due >= 2, "rank {}: an overlap has at least 2 parts, got {}",
                               r, parts_due);
        continue;
      }
      if (type == ActionType::kIdle) continue;
      ++num_actions_;
      if (has_microbatch(type)) {
        last_microbatch = std::max(last_microbatch, action.microbatch().value());
      }
    }
    require<ArgumentError>(parts_due == 0, "rank {}: the last overlap lacks {} of its parts", r,
                           parts_due);
  }
  num_microbatches_ = last_microbatch + 1;
}

std::span<const Action> Schedule::actions(Rank rank) const {
  require<ArgumentError>(rank.value() >= 0 && rank.value() < num_ranks(),
                         "there is no rank {}; there are {} ranks", rank.value(), num_ranks());
  return lists_[rank.value()];
}

Level infer_level(std::span<const ActionList> lists) {
  for (const ActionList& list : lists) {
    for (const Action action : list) {
      if (is_transfer(action.type()) || is_send_wait(action.type())) return Level::kLowered;
    }
  }
  return Level::kCompute;
}

Placement infer_placement(std::span<const ActionList> lists) {
  std::vector<std::optional<Rank>> rank_of;
  for (std::size_t r = 0; r < lists.size(); ++r) {
    for (const Action action : lists[r]) {
      if (action.is_idle() || action.is_overlap()) continue;
      const std::size_t stage = action.stage().position();
      if (stage >= rank_of.size()) rank_of.resize(stage + 1);
      if (!rank_of[stage]) rank_of[stage] = Rank(static_cast<int32_t>(r));
    }
  }
  return Placement::of(std::move(rank_of), static_cast<int32_t>(lists.size()));
}

}  // namespace stagecraft
