#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/stage/memory_meter.h"

/// Values on their way from stage to stage.
namespace stagecraft {

/// Tensors without history. Whether a gradient is wanted back stays on the tensor: while training
/// it requires grad as before.
c10::IValue without_history(const c10::IValue& value, bool is_training);

/// Whether any of its tensors does.
bool requires_grad(const c10::IValue& value);

/// Its defined tensors.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// Of the tensors in them.
int64_t bytes_of(const std::vector<c10::IValue>& values);

/// Memory that changes hands is counted where it is used. Does nothing without a meter.
void hand_over(MemoryMeter* meter, const std::vector<c10::IValue>& values, int account);

}  // namespace stagecraft
