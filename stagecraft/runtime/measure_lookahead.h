#pragma once

#include <chrono>
#include <cstdint>

#include "stagecraft/runtime/record/measured_lookahead.h"
#include "stagecraft/runtime/record/recording.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// A rank whose weights are sharded (ShardKind::kParameters).
struct ShardedRank {
  Transport& transport;
  const ReplicaPlace& place;
  ParameterShards& shards;
  std::chrono::nanoseconds timeout;  ///< of each wait
};

/// Measures gathers, and finds the lookahead of each rank of a replica. Called by all ranks of the
/// world, between steps; all get the result of rank 0. Weights that are whole are released.
///
/// `recording`: of a training step of this rank's replica; that of the first replica counts.
/// `computations`: its schedule, not lowered. Throws as transfers do.
MeasuredLookahead measure_lookahead(const ShardedRank& rank, const Recording& recording,
                                    const Schedule& computations, int32_t max_active_stages);

}  // namespace stagecraft
