#pragma once

#include <cstdint>

#include "stagecraft/plan/schedule_problem.h"
#include "tests/schedule/random.h"

namespace stagecraft {

/// A problem with small whole numbers, feasible: two or three ranks, one or two stages each, at
/// most `pairs` pairs of a stage and a microbatch.
ScheduleProblem tiny_problem(Random& random, int32_t pairs);

/// A problem with anything in it that a problem can have, feasible: zeros, ranges of twelve orders
/// of magnitude, one rank or one microbatch, I that takes memory, B, peaks, skip edges, links that
/// differ, with a bandwidth, sizes, speeds.
ScheduleProblem odd_problem(Random& random);

}  // namespace stagecraft
