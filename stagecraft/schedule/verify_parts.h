#pragma once

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/findings.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

// What `verify` looks at, one file each.
namespace stagecraft {

/// Every action is on the rank of its stage, and none is there twice. Fills `index`. Returns false
/// when the other parts cannot rely on it.
bool verify_places(const Schedule& schedule, const VerifyOptions& options, ActionIndex& index,
                   Findings& findings);
/// All required actions are there, and every transfer has a reader on another rank.
void verify_complete(const Schedule& schedule, const StageGraph& graph,
                     const VerifyOptions& options, const ActionIndex& index, Findings& findings);
/// UNSHARD, RESHARD and REDUCE_GRAD are in order.
void verify_sharding(const Schedule& schedule, const VerifyOptions& options, Findings& findings);
/// No rank waits for ever.
void verify_progress(const Schedule& schedule, const StageGraph& graph, const ActionIndex& index,
                     Findings& findings);

}  // namespace stagecraft
