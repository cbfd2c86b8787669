#pragma once

#include <cstdint>
#include <vector>

#include "stagecraft/runtime/pipeline_base.h"
#include "stagecraft/runtime/step.h"

namespace stagecraft::detail {

/// The median; 0 without values.
double median_of(std::vector<double> values);

/// The first microbatches of a batch, again from the start if it has too few.
Microbatches some_microbatches(const Microbatches& batch, int32_t count);

/// Makes every recorded action end when its kernels have ended on the device of the parameters.
/// Does nothing on the CPU.
void record_device_time(PipelineBase& pipeline);

void clear_gradients(const PipelineBase& pipeline);

}  // namespace stagecraft::detail
