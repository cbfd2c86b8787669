#pragma once

#include "stagecraft/schedule/action_index.h"
#include "stagecraft/schedule/findings.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"
#include "stagecraft/schedule/verify.h"

// The parts of `verify`, each in a file of its own.
namespace stagecraft {

/// Checks that every action is on the rank of its stage, and that none occurs twice. Fills `index`.
/// Returns false if the other parts cannot rely on it.
bool verify_places(const Schedule& schedule, const VerifyOptions& options, ActionIndex& index,
                   Findings& findings);
/// Checks that all required actions exist, and that every transfer has a reader on a different
/// rank.
void verify_complete(const Schedule& schedule, const StageGraph& graph,
                     const VerifyOptions& options, const ActionIndex& index, Findings& findings);
/// Checks the order of UNSHARD, RESHARD and REDUCE_GRAD.
void verify_sharding(const Schedule& schedule, const VerifyOptions& options, Findings& findings);
/// Checks that no rank waits for ever.
void verify_progress(const Schedule& schedule, const StageGraph& graph, const ActionIndex& index,
                     Findings& findings);

}  // namespace stagecraft
