#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <unordered_set>
#include <vector>

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/needs.h"
#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Executes the lists of a schedule in an order that respects Needs: each rank advances until it
/// has to wait, and resumes when the action that it waits for is done. Linear in the number of
/// actions. An action that is needed and not in the schedule counts as done.
///
/// REQUIRES that every action is on the rank of its stage and in `index`, and none occurs twice.
class ListRunner {
 public:
  /// The action that a rank waits for.
  struct Wait {
    std::size_t rank = 0;    ///< the rank of the action
    std::size_t offset = 0;  ///< the place of the action in its list
  };

  ListRunner(const Schedule& schedule, const ActionIndex& index, const Needs& needs)
      : lists_(schedule.lists()),
        rank_of_(schedule.placement().ranks()),
        index_(index),
        needs_(needs),
        heads_(lists_.size(), 0),
        waits_(lists_.size()),
        sleepers_(lists_.size()),
        first_awaited_(lists_.size(), kNone) {
    for (std::size_t r = lists_.size(); r-- > 0;) ready_.push_back(r);
  }

  /// Calls execute(rank, offset, length) for each slot in turn; `length` is 1, or 1 + parts for an
  /// overlap. Returns whether all lists were executed to their ends. After finish_ahead it can be
  /// called again, and continues.
  template <typename Execute>
  bool run(Execute&& execute) {
    while (!ready_.empty()) {
      const std::size_t rank = ready_.back();
      ready_.pop_back();
      const ActionList& list = lists_[rank];
      std::size_t& head = heads_[rank];
      while (head < list.size()) {
        const std::size_t length = 1 + static_cast<std::size_t>(list[head].num_parts());
        if (!is_ahead(rank, head)) {
          if (!can_start(rank, head, length)) break;
          execute(rank, head, length);
          last_waiting_ = kNone;
        }
        head += length;
        if (head > first_awaited_[rank]) wake(rank);
      }
      if (head == list.size()) {
        ++finished_;
      } else {
        last_waiting_ = rank;
      }
    }
    return finished_ == lists_.size();
  }

  /// After run() returned false: counts an action that a rank waits for as done ahead of its place.
  /// The caller executes the action; run() will skip it.
  void finish_ahead(const Wait& wait) {
    ahead_.insert(place_of(wait.rank, wait.offset));
    wake(wait.rank);
  }

  /// After run() returned false: the ranks whose head is before the end of their list wait.
  std::size_t head(std::size_t rank) const { return heads_[rank]; }
  const Wait& wait(std::size_t rank) const { return waits_[rank]; }
  /// The rank that began to wait last, if no slot was executed since; otherwise any rank that
  /// waits.
  std::size_t last_waiting() const {
    if (last_waiting_ != kNone) return last_waiting_;
    std::size_t rank = 0;
    while (heads_[rank] == lists_[rank].size()) ++rank;
    return rank;
  }

 private:
  static constexpr std::size_t kNone = std::numeric_limits<std::size_t>::max();

  std::size_t place_of(std::size_t rank, std::size_t offset) const {
    return index_.first_place(rank) + offset;
  }
  bool is_ahead(std::size_t rank, std::size_t offset) const {
    return !ahead_.empty() && ahead_.contains(place_of(rank, offset));
  }
  bool is_done(std::size_t rank, std::size_t offset) const {
    return offset < heads_[rank] || is_ahead(rank, offset);
  }

  bool can_start(std::size_t rank, std::size_t offset, std::size_t length) {
    const Action* const slot = lists_[rank].data() + offset;
    for (std::size_t i = length == 1 ? 0 : 1; i < length; ++i) {
      const Action action = slot[i];
      if (!has_microbatch(action.type())) continue;
      bool done = true;
      needs_.visit(action, [&](ActionType type, StageId stage) {
        done = is_done_or_waits(type, stage, action.microbatch(), rank);
        return done;
      });
      if (!done) return false;
    }
    return true;
  }

  // Whether an action is done. If not, `rank` waits until it is.
  bool is_done_or_waits(ActionType type, StageId stage, MicrobatchId microbatch, std::size_t rank) {
    const uint32_t place = type == ActionType::kBackward
                               ? index_.find_gradient_maker(stage, microbatch)
                               : index_.find(type, stage, microbatch);
    if (place == ActionIndex::kNowhere) return true;
    const auto other = rank_of_[stage].position();
    const std::size_t offset = place - index_.first_place(other);
    if (is_done(other, offset)) return true;
    waits_[rank] = {other, offset};
    if (other != rank) {  // otherwise an action that is later in its own list: it is never done
      sleepers_[other].push_back(rank);
      first_awaited_[other] = std::min(first_awaited_[other], offset);
    }
    return false;
  }

  void wake(std::size_t rank) {
    std::vector<std::size_t>& sleepers = sleepers_[rank];
    first_awaited_[rank] = kNone;
    std::size_t kept = 0;
    for (const std::size_t sleeper : sleepers) {
      const std::size_t offset = waits_[sleeper].offset;
      if (is_done(rank, offset)) {
        ready_.push_back(sleeper);
      } else {
        sleepers[kept++] = sleeper;
        first_awaited_[rank] = std::min(first_awaited_[rank], offset);
      }
    }
    sleepers.resize(kept);
  }

  const std::vector<ActionList>& lists_;
  const IndexedVector<StageId, Rank>& rank_of_;
  const ActionIndex& index_;
  const Needs& needs_;
  std::vector<std::size_t> heads_;
  std::vector<Wait> waits_;
  std::vector<std::vector<std::size_t>> sleepers_;
  std::vector<std::size_t> first_awaited_;
  std::vector<std::size_t> ready_;
  std::size_t finished_ = 0;
  std::size_t last_waiting_ = kNone;
  std::unordered_set<std::size_t> ahead_;  // places of actions that finish_ahead counts as done
};

}  // namespace stagecraft
