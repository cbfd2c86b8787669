#pragma once

#include "stagecraft/schedule/schedule.h"

namespace stagecraft {

/// Replaces each I that is directly followed by the W of its stage and microbatch, and that W, by a
/// B. Removes idle slots first. An I that is the last part of an overlap is merged, too:
/// (0F1;1I0)OVERLAP_F_B,1W0 becomes (0F1;1B0)OVERLAP_F_B.
///
/// ArgumentError unless the level is kCompute: a lowered schedule may send between I and W.
Schedule merge_backward(const Schedule& schedule);

}  // namespace stagecraft
