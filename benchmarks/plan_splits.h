#pragma once

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// Whole plans: a model of 50 layers on 8 ranks with different amounts of memory, the time of
/// planning, and microbatches whose sizes differ.
void measure_splits(Suite& suite);

}  // namespace stagecraft::bench
