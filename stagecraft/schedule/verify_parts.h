#pragma once

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/findings.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

// What `verify` looks at, one file each.
namespace stagecraft {

/// Every action where it belongs and none twice; fills `index`. Returns false when the rest would
/// have nothing to stand on.
bool verify_places(const Schedule& schedule, const VerifyOptions& options, ActionIndex& index,
                   Findings& findings);
/// All there that has to be, and no transfer that goes nowhere.
void verify_complete(const Schedule& schedule, const StageGraph& graph,
                     const VerifyOptions& options, const ActionIndex& index, Findings& findings);
/// UNSHARD, RESHARD, REDUCE_GRAD.
void verify_sharding(const Schedule& schedule, const VerifyOptions& options, Findings& findings);
/// Nobody waits for ever.
void verify_progress(const Schedule& schedule, const StageGraph& graph, const ActionIndex& index,
                     Findings& findings);

}  // namespace stagecraft
