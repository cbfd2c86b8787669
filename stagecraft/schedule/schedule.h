#pragma once

#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "stagecraft/base/index.h"
#include "stagecraft/schedule/action.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/schedule/slot.h"

namespace stagecraft {

/// The actions of one rank, in the order of execution.
using ActionList = std::vector<Action>;

/// The part of a rank's work that a schedule contains.
enum class Level : uint8_t {
  /// The computations of each rank, in their order. Transfers between ranks are implied, and idle
  /// slots show where a rank waits. UNSHARD, RESHARD, REDUCE_GRAD and WAIT_REDUCE_GRAD may be there
  /// already.
  kCompute,
  /// All actions of a rank, transfers included; no idle slots.
  kLowered,
};

/// "compute" or "lowered".
std::string_view to_string(Level level);

/// The actions of all ranks in one step: a list for each rank, and the placement of the stages. An
/// immutable value, made by a builder, a pass or the reader of a file. `verify` (schedule/verify.h)
/// says whether it can be executed.
class Schedule {
 public:
  /// One list for each rank of `placement`. ArgumentError unless every overlap is followed by its
  /// parts: at least two, all of them F, I, W or B.
  Schedule(Level level, Placement placement, std::vector<ActionList> lists);

  Level level() const { return level_; }
  const Placement& placement() const { return placement_; }
  int32_t num_ranks() const { return placement_.num_ranks(); }
  int32_t num_stages() const { return placement_.num_stages(); }
  /// One more than the highest microbatch that occurs.
  int32_t num_microbatches() const { return num_microbatches_; }
  /// Over all ranks, idle slots excluded; the parts of an overlap count, the overlap does not.
  int64_t num_actions() const { return num_actions_; }

  /// The rank's list. An overlap is followed by its parts. ArgumentError for a rank that does not
  /// exist.
  std::span<const Action> actions(Rank rank) const;
  /// The same list as slots, in which an overlap and its parts are one.
  SlotRange slots(Rank rank) const { return SlotRange(actions(rank)); }
  const std::vector<ActionList>& lists() const { return lists_; }

  friend bool operator==(const Schedule&, const Schedule&) = default;

 private:
  Level level_;
  Placement placement_;
  std::vector<ActionList> lists_;
  int32_t num_microbatches_ = 0;
  int64_t num_actions_ = 0;
};

/// Level and placement of lists that come from outside. The level is lowered if a transfer or a
/// wait for a send occurs. A stage is on the first rank that has an action of it.
Level infer_level(std::span<const ActionList> lists);
Placement infer_placement(std::span<const ActionList> lists);

}  // namespace stagecraft
