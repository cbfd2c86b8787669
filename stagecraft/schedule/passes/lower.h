#pragma once

#include <cstdint>
#include <optional>

#include "stagecraft/schedule/passes/shard_stages.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

namespace stagecraft {

/// Which passes lower runs, and how.
struct LowerOptions {
  bool shard = true;  ///< UNSHARD and RESHARD (unless they are there already)
  int32_t max_active_stages = kDefaultActiveStages;
  bool reduce_grads = true;  ///< REDUCE_GRAD (unless it is there already)
  /// Move receives to `prefetch` slots of compute before their use; without it they stay where
  /// add_transfers puts them.
  std::optional<int32_t> prefetch = std::nullopt;
  /// What the schedule has to be complete for; without it, infer_mode decides.
  std::optional<VerifyMode> mode = std::nullopt;
};

/// Makes a lowered schedule: runs shard_stages, reduce_grads, add_transfers and, if asked,
/// place_receives. Verifies the schedule before the first pass and after each (ScheduleError).
///
/// REQUIRES level kCompute (ArgumentError).
Schedule lower(const Schedule& schedule, const StageGraph& graph, const LowerOptions& options = {});
/// For a chain of stages.
Schedule lower(const Schedule& schedule, const LowerOptions& options = {});

}  // namespace stagecraft
