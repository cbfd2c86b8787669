#pragma once

#include <optional>
#include <string>

#include "stagecraft/schedule/passes/lower.h"
#include "stagecraft/schedule/schedule.h"
#include "stagecraft/schedule/stage_graph.h"

namespace stagecraft {

/// Why the torch of `options.target` refuses or cannot execute the schedule that `lower` made with
/// these options; nothing if torch accepts the schedule. torch has rules that the runtime of this
/// library does not have: stages form a chain, every stage trains every microbatch, the last stage
/// runs them in ascending order, and torch 2.15 has at most one reduction of a rank at a time.
/// `lower` itself does not apply them, because such a schedule can be executed here.
///
/// ArgumentError unless the level is kLowered and the target is a torch. REQUIRES a schedule that
/// verify accepts.
std::optional<std::string> find_torch_refusal(const Schedule& schedule, const StageGraph& graph,
                                              const LowerOptions& options);

}  // namespace stagecraft
