#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "stagecraft/base/deadline.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/step_driver.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/shard/parameter_shards.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// Compares what all ranks must have in common before their first step: version, schedule, stages,
/// ports, ties, replicas, what they shard, seed and device types. Ranks without parameters fit any
/// device type. `shards` may be null. Called by all ranks. A mismatch, and a unit of shards that no
/// rank has, is the same MetadataError on every rank.
void compare_pipelines(Transport& transport, const PipelineCore& core,
                       std::span<const Stage> stages, const ParameterShards* shards,
                       Deadline deadline);

/// The announcement of a rank that begins a step.
struct StepAnnouncement {
  bool is_training = true;
  int32_t microbatches = 0;
  uint64_t draw = 0;      ///< of random numbers; depends on the number of completed steps
  uint64_t schedule = 0;  ///< checksum_of
  bool reduce_grads = true;
  /// Parameters whose gradients are local (GradReducer::num_local). The same in all replicas, but
  /// not on all ranks of one.
  int32_t local_grads = 0;
  // The following may differ between ranks.
  bool everywhere = false;  ///< the rank asks for the results
  uint64_t shapes = 0;      ///< checksum_of_shapes of its part of the batch
  double rows = -1;         ///< of its part of the batch (Microbatches::rows); -1: unknown
};

/// Differs for different schedules.
uint64_t checksum_of(const Schedule& schedule);

/// The announcements of all ranks, by rank. Called by all ranks. If the steps differ, or if ranks
/// with the same stages have local gradients of different numbers of parameters, every rank throws
/// the same MetadataError.
std::vector<StepAnnouncement> announce_step(Transport& transport, const StepAnnouncement& own,
                                            const ReplicaPlace& place, Deadline deadline);

/// This replica's share of all rows. If the rows of a replica are unknown, shares are equal.
double share_of_replica(std::span<const StepAnnouncement> ranks, const ReplicaPlace& place);

}  // namespace stagecraft
