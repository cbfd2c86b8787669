#include "stagecraft/stage/grad_value.h"

#include <algorithm>
#include <utility>

#include <ATen/core/Tensor.h>
#include <ATen/ops/add.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/describe.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

at::Tensor sum_of(const at::Tensor& a, const at::Tensor& b) {
  if (!a.defined()) return b;
  if (!b.defined()) return a;
  // Not in place: autograd may return one tensor as the gradient of several inputs (of a sum, for
  // example). The order of the addends is the caller's, and decides the last bits.
  return at::add(a, b.device() == a.device() ? b : b.to(a.device()));
}

std::vector<at::Tensor> all_grads_of(const c10::IValue& grad) {
  std::vector<at::Tensor> grads;
  if (grad.isTuple()) {
    for (const auto& entry : grad.toTupleRef().elements()) {
      grads.push_back(entry.isTensor() ? entry.toTensor() : at::Tensor());
    }
  } else if (grad.isTensor()) {
    grads.push_back(grad.toTensor());
  }
  return grads;
}

}  // namespace

std::vector<at::Tensor> tensors_of(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  // A shortcut: most values are one tensor.
  if (value.isTensor()) {
    tensors.push_back(value.toTensor());
    return tensors;
  }
  for (const c10::IValue& leaf : tree::leaves(value)) {
    if (leaf.isTensor()) tensors.push_back(leaf.toTensor());
  }
  return tensors;
}

c10::IValue make_grad_value(bool is_tensor, std::vector<at::Tensor> grads) {
  const bool any =
      std::any_of(grads.begin(), grads.end(), [](const at::Tensor& g) { return g.defined(); });
  if (!any) return {};
  if (is_tensor) return std::move(grads.front());
  std::vector<c10::IValue> entries;
  entries.reserve(grads.size());
  for (at::Tensor& grad : grads) {
    entries.push_back(grad.defined() ? c10::IValue(std::move(grad)) : c10::IValue());
  }
  return tree::tuple(std::move(entries));
}

std::vector<at::Tensor> grads_of(const c10::IValue& grad, std::size_t num_tensors) {
  if (grad.isNone()) return std::vector<at::Tensor>(num_tensors);
  std::vector<at::Tensor> grads = all_grads_of(grad);
  // Gradients are matched with tensors by position, so a difference in number would add them to
  // wrong tensors.
  if (grads.size() != num_tensors) {
    throw MetadataError(fmt::format(
        "a gradient does not fit its value: expected one for each of {} tensors, got {}",
        num_tensors, describe(grad)));
  }
  return grads;
}

c10::IValue add_grad_values(const c10::IValue& a, const c10::IValue& b) {
  if (a.isNone()) return b;
  if (b.isNone()) return a;
  if (a.isTensor() && b.isTensor()) return sum_of(a.toTensor(), b.toTensor());
  std::vector<at::Tensor> sum = all_grads_of(a);
  const std::vector<at::Tensor> more = grads_of(b, sum.size());
  for (std::size_t i = 0; i < sum.size(); ++i) sum[i] = sum_of(sum[i], more[i]);
  return make_grad_value(false, std::move(sum));
}

}  // namespace stagecraft
