#pragma once

#include <ATen/core/ivalue.h>

#include "stagecraft/runtime/executor.h"
#include "stagecraft/runtime/step.h"

namespace stagecraft {

/// The results of a step on the rank of the last stage. On other ranks, only their added losses.
StepResult take_result(Executor& executor, const StepOptions& options, bool has_last_stage);

/// Converts a result to a value that can be sent, and back.
c10::IValue to_value(const StepResult& result);
StepResult result_of(const c10::IValue& value);

/// ArgumentError if gradients are disabled on this thread: a step would train nothing.
void check_grad_mode();

}  // namespace stagecraft
