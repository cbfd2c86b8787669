#pragma once

#include <chrono>
#include <cstdint>
#include <span>

#include "stagecraft/runtime/progress_mark.h"
#include "stagecraft/runtime/replica_place.h"
#include "stagecraft/runtime/step.h"
#include "stagecraft/runtime/step_meeting.h"
#include "stagecraft/schedule/placement.h"
#include "stagecraft/transport/transport.h"

namespace stagecraft {

/// How the ranks of a world end a step together.
struct StepEnd {
  Transport& transport;
  ProgressMark& progress;
  const ReplicaPlace& place;
  const Placement& placement;
  uint64_t step;  ///< identifies the transfers of the results
  std::chrono::nanoseconds timeout;
};

/// Ends a step that this rank has executed. Called by all ranks, so that a failure on one rank is
/// one on all. `result` has what this rank computed. Afterwards the rank of the last stage has the
/// losses of all replicas, and ranks that announced StepAnnouncement::everywhere have its result
/// beside their own added losses. `ranks` are the announcements of the step, by rank.
void end_step(const StepEnd& end, std::span<const StepAnnouncement> ranks, StepResult& result);

}  // namespace stagecraft
