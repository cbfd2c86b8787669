#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/deadline.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/runner.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/stage/ports.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/transport/fingerprint.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// What the ranks of a pipeline must have in common before their first step: version, schedule,
/// stages, ports, ties, replicas, seed and kinds of devices.
Fingerprint pipeline_facts(const ScheduleSource& source, std::span<const Stage> stages,
                           const Ports& ports, const RunnerOptions& options, uint64_t seed);

/// What a rank says of a step before it takes part in it.
struct StepAnnouncement {
  bool is_training = true;
  int32_t microbatches = 0;
  uint64_t draw = 0;      ///< of random numbers, which tells how many steps were completed
  uint64_t schedule = 0;  ///< checksum_of
  /// Need not be the same on all ranks: whether it asks for the results, and how many rows its part
  /// of the batch has (Microbatches::rows), -1 where it does not know.
  bool everywhere = false;
  double rows = -1;
};

/// Another number for another schedule.
uint64_t checksum_of(const Schedule& schedule);

/// What all ranks announce, by rank; called by all of them. MetadataError on every rank, as
/// `agree` throws it, where the steps are not the same.
std::vector<StepAnnouncement> announce_step(Transport& transport, const StepAnnouncement& own,
                                            Deadline deadline);

/// This replica's share of all rows; the equal one where somebody did not count.
double share_of_replica(std::span<const StepAnnouncement> ranks, const ReplicaPlace& place);

}  // namespace stagecraft
