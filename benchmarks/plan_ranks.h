#pragma once

#include <string>

#include "benchmarks/harness.h"

namespace stagecraft::bench {

/// The argument with which this program is one rank of a planned pipeline, followed by the path of
/// the model, and the function that it then runs. It plans with the other ranks, and answers lines
/// (pytorch_cases.py) "predicted 1", "measured 1" and "different 1" (rank 0).
constexpr const char* kPlanWorker = "--plan-worker";
int run_plan_worker(const std::string& path);

/// Four processes over gloo that measure, plan and run together.
void measure_processes(Suite& suite, const std::string& what, const std::string& path);

}  // namespace stagecraft::bench
