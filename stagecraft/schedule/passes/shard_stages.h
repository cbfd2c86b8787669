#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

constexpr int32_t kDefaultActiveStages = 3;

/// The number of next stages that are unsharded ahead of their use.
enum class Lookahead : uint8_t {
  kFull,  ///< as many as may be active
  kAuto,  ///< r + 2 on rank r, at most as many as may be active: early ranks unshard later
};
/// A policy, or one number a rank, from 1 to max_active_stages.
using UnshardLookahead = std::variant<Lookahead, std::vector<int32_t>>;

/// One number a rank. ArgumentError for numbers that do not fit.
std::vector<int32_t> resolve_lookahead(const UnshardLookahead& lookahead, int32_t ranks,
                                       int32_t max_active_stages);

/// Inserts UNSHARD and RESHARD for stages whose parameters are sharded over replicas. Before each
/// slot, the next `lookahead` different stages of the rank's list are unsharded, and those that are
/// not among the next `max_active_stages` are resharded, in the order in which they were unsharded.
/// The stages of one overlap go together, even beyond these limits. Removes idle slots.
///
/// ArgumentError unless the level is kCompute, max_active_stages >= 1 and the lookahead fits, and
/// if the schedule has UNSHARD or RESHARD.
Schedule shard_stages(const Schedule& schedule, int32_t max_active_stages = kDefaultActiveStages,
                      const UnshardLookahead& lookahead = Lookahead::kFull);

}  // namespace stagecraft
