#pragma once

namespace stagecraft {

/// Adds kCondOperator, kSplitOperator and kGroupedMmOperator to torch's registry, on the first
/// call. Only a GraphProgram can run a cond, because its branches are part of the node.
void register_own_operators();

}  // namespace stagecraft
