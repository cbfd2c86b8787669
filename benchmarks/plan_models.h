#pragma once

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// Plans of real models on two ranks that are threads, and on four processes: predicted against
/// measured, against equal layers and against the cost policy, memory, limits, losses.
void measure_models(Suite& suite);

}  // namespace stagecraft::bench
