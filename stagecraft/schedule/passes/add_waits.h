#pragma once

#include <cstdint>

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Inserts a wait for each send, as torch 2.15 does: WAIT_SEND_F directly after the slot with the B
/// or I of its stage and microbatch, before the sends of that slot. That backward could not run
/// before the readers had the value, so the wait takes no time. The waits for all other sends come
/// at the end of the list, in the order of the sends.
///
/// ArgumentError unless the level is kLowered, and if the schedule has waits for sends.
Schedule add_send_waits(const Schedule& schedule);

/// The place of a WAIT_REDUCE_GRAD.
enum class ReductionWait : uint8_t {
  kAtOnce,    ///< directly after its REDUCE_GRAD
  kDeferred,  ///< before the next REDUCE_GRAD of the rank; for the last one, at the end of the list
};

/// Inserts a WAIT_REDUCE_GRAD for each REDUCE_GRAD. Runs before add_transfers, which counts the
/// wait as a turn of its rank.
///
/// ArgumentError unless the level is kCompute, and if the schedule has WAIT_REDUCE_GRAD.
Schedule add_reduction_waits(const Schedule& schedule, ReductionWait where);

}  // namespace stagecraft
