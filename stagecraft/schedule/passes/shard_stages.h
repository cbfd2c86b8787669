#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

constexpr int32_t kDefaultActiveStages = 3;

/// Inserts UNSHARD and RESHARD for stages whose parameters are sharded over replicas: before each
/// slot, the next `max_active_stages` different stages of the rank's list are unsharded (those of
/// one overlap together, even beyond the limit) and all others resharded. Removes idle slots.
///
/// REQUIRES level kCompute without UNSHARD and RESHARD, max_active_stages >= 1 (ArgumentError).
Schedule shard_stages(const Schedule& schedule, int32_t max_active_stages = kDefaultActiveStages);

}  // namespace stagecraft
