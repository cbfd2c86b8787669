#pragma once

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// Whole plans: a model of 50 layers on 8 ranks with more and less memory, how fast a plan is
/// found, and microbatches whose sizes differ.
void measure_splits(Suite& suite);

}  // namespace stagecraft::bench
