#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/stage/memory_meter.h"

/// Values that go from stage to stage.
namespace stagecraft {

/// The value with tensors without history. While training, a tensor that requires grad still does,
/// so that its gradient is sent back.
c10::IValue without_history(const c10::IValue& value, bool is_training);

/// Whether any tensor of the value requires grad.
bool requires_grad(const c10::IValue& value);

/// Visits the defined tensors of a value.
void for_each_tensor(const c10::IValue& value, const std::function<void(const at::Tensor&)>& visit);

/// The bytes of all tensors of the values.
int64_t bytes_of(const std::vector<c10::IValue>& values);

/// Moves the memory of values to a different account of the meter. Does nothing without a meter.
void hand_over(MemoryMeter* meter, const std::vector<c10::IValue>& values, int account);

}  // namespace stagecraft
