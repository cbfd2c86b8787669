#pragma once

#include <cstdint>

#include "stagecraft/plan/instance.h"

namespace stagecraft::plan {

/// The most time of F that a rank can compute before its first I ends: as many F as its memory
/// holds.
double most_forwards(const Instance& in, int32_t rank);

/// The most time of I and W that can remain on a rank when its last F ends. All that waits for I or
/// W must fit into its memory, and at least one microbatch of its last stage waits for I.
double most_left_after_forwards(const Instance& in, int32_t rank);

/// The most time of W that can remain on a rank when its last I ends.
double most_left_after_inputs(const Instance& in, int32_t rank);

}  // namespace stagecraft::plan
