#pragma once

#include <chrono>
#include <cstdint>

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/step.h"

namespace stagecraft {

/// What the rank of the last stage has after a step; elsewhere only what it added to losses.
StepResult take_result(Executor& executor, const StepOptions& options, bool has_last_stage);

/// As a value that can be sent, and back.
c10::IValue to_value(const StepResult& result);
StepResult result_of(const c10::IValue& value);

/// The seed of the process's CPU generator.
uint64_t default_seed();

/// ArgumentError where gradients are switched off: a step would train nothing.
void check_grad_mode();
/// ArgumentError for a time that cannot be waited.
void require_wait(std::chrono::nanoseconds timeout);

}  // namespace stagecraft
