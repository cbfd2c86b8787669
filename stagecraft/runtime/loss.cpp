#include "stagecraft/runtime/loss.h"

#include <ATen/core/Tensor.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"

namespace stagecraft {

at::Tensor Loss::operator()(const c10::IValue& output, const c10::IValue& target,
                            const Kwargs& arguments) const {
  c10::IValue loss = call_(output, target, arguments);
  if (!loss.isTensor() || !loss.toTensor().defined() || loss.toTensor().numel() != 1) {
    throw ArgumentError("the loss must be a tensor with one element, got " + describe(loss));
  }
  return std::move(loss).toTensor();
}

}  // namespace stagecraft
