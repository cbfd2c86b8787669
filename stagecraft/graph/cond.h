#pragma once

namespace stagecraft {

/// Adds kCondOperator to the engine's registry, the first time. Only a program can run it: the
/// branches are the node's.
void register_cond_operator();

}  // namespace stagecraft
