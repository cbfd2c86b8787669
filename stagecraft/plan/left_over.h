#pragma once

#include <cstdint>

#include "stagecraft/plan/instance.h"

namespace stagecraft::plan {

/// The most time of F that a rank can have computed while it has finished no I: as many F as its
/// memory holds.
double most_forwards(const Instance& in, int32_t rank);

/// The most time of I and W that can be left on a rank at the moment its last F ends: what waits
/// for I or W has to fit into its memory, one microbatch of its last stage waits for I.
double most_left_after_forwards(const Instance& in, int32_t rank);

/// The most time of W that can be left at the moment its last I ends.
double most_left_after_inputs(const Instance& in, int32_t rank);

}  // namespace stagecraft::plan
