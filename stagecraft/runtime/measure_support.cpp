#include "stagecraft/runtime/measure_support.h"

#include <algorithm>
#include <cstddef>

#include <ATen/core/Tensor.h>
#include <c10/core/impl/VirtualGuardImpl.h>

namespace stagecraft::detail {

double median_of(std::vector<double> values) {
  if (values.empty()) return 0;
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

Microbatches some_microbatches(const Microbatches& batch, int32_t count) {
  Microbatches some;
  for (int32_t m = 0; m < count; ++m) {
    const std::size_t from = static_cast<std::size_t>(m) % batch.inputs.size();
    some.inputs.push_back(batch.inputs[from]);
    if (!batch.targets.empty()) some.targets.push_back(batch.targets[from]);
    some.weights.push_back(1.0 / count);
  }
  return some;
}

void record_device_time(PipelineBase& pipeline) {
  for (const at::Tensor& parameter : pipeline.parameters()) {
    const c10::Device device = parameter.device();
    if (device.is_cpu()) continue;
    pipeline.callbacks().observe([device](Rank, Action, ActionPhase phase) {
      if (phase != ActionPhase::kEnd) return;
      const c10::impl::VirtualGuardImpl guard(device.type());
      guard.synchronizeStream(guard.getStream(device));
    });
    return;
  }
}

void clear_gradients(const PipelineBase& pipeline) {
  for (const at::Tensor& parameter : pipeline.parameters()) parameter.mutable_grad().reset();
}

}  // namespace stagecraft::detail
