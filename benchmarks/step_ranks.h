#pragma once

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// The argument with which this program is one of two ranks of a pipeline, and the function that it
/// then runs. It reads lines "CASE ITERATIONS" (rank 0) and answers each with seconds
/// (pytorch_cases.py). A case is SCHEDULE/HIDDEN as in vs_pytorch_worker.py, or "overlap", whose
/// answer is a ratio.
constexpr const char* kStepWorker = "--step-worker";
int run_step_worker(int argc, char** argv);

/// Steps of two ranks over each transport against PyTorch's on two processes over gloo, and the
/// share of a transfer that compute hides.
void compare_steps(Suite& suite);

}  // namespace stagecraft::bench
