#include "stagecraft/runtime/values.h"

#include <algorithm>

#include "stagecraft/stage/grad_value.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

bool is_container(const c10::IValue& value) {
  return value.isTuple() || value.isList() || value.isGenericDict();
}

at::Tensor without_history(const at::Tensor& tensor, bool is_training) {
  if (!tensor.defined() || !tensor.requires_grad()) return tensor;
  at::Tensor plain = tensor.detach();
  if (is_training) plain.requires_grad_(true);
  return plain;
}

}  // namespace

c10::IValue without_history(const c10::IValue& value, bool is_training) {
  if (value.isTensor()) return without_history(value.toTensor(), is_training);
  if (!is_container(value)) return value;
  return tree::map(value, [&](const c10::IValue& leaf) {
    return leaf.isTensor() ? c10::IValue(without_history(leaf.toTensor(), is_training)) : leaf;
  });
}

bool requires_grad(const c10::IValue& value) {
  bool any = false;
  for_each_tensor(value, [&](const at::Tensor& tensor) { any = any || tensor.requires_grad(); });
  return any;
}

void for_each_tensor(const c10::IValue& value,
                     const std::function<void(const at::Tensor&)>& visit) {
  if (value.isTensor()) {
    if (value.toTensor().defined()) visit(value.toTensor());
  } else if (is_container(value)) {
    for (const at::Tensor& tensor : tensors_of(value)) {
      if (tensor.defined()) visit(tensor);
    }
  }
}

int64_t bytes_of(const std::vector<c10::IValue>& values) {
  int64_t bytes = 0;
  for (const c10::IValue& value : values) {
    for_each_tensor(
        value, [&](const at::Tensor& tensor) { bytes += static_cast<int64_t>(tensor.nbytes()); });
  }
  return bytes;
}

void hand_over(MemoryMeter* meter, const std::vector<c10::IValue>& values, int account) {
  if (meter == nullptr) return;
  for (const c10::IValue& value : values) {
    for_each_tensor(value, [&](const at::Tensor& tensor) {
      if (tensor.has_storage()) meter->take_over(tensor, account);
    });
  }
}

}  // namespace stagecraft
