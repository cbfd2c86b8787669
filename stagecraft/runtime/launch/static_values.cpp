#include "stagecraft/runtime/launch/static_values.h"

#include <cstddef>

#include <ATen/core/Tensor.h>
#include <ATen/ops/_foreach_copy.h>
#include <ATen/ops/empty_like.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::detail {

namespace {

bool is_tensor(const c10::IValue& leaf) {
  return leaf.isTensor() && leaf.toTensor().defined();
}

}  // namespace

Values static_copies(const Values& values, c10::Device device) {
  const c10::NoGradGuard no_grad;
  Values copies;
  for (const c10::IValue& value : values) {
    copies.push_back(tree::map(value, [&](const c10::IValue& leaf) -> c10::IValue {
      if (!is_tensor(leaf)) return leaf;
      const at::Tensor& tensor = leaf.toTensor();
      at::Tensor copy = at::empty_like(tensor, tensor.options().device(device));
      copy.copy_(tensor, /*non_blocking=*/true);
      return copy.requires_grad_(tensor.requires_grad());
    }));
  }
  return copies;
}

Values clones(const Values& values) {
  const c10::NoGradGuard no_grad;
  Values copies;
  for (const c10::IValue& value : values) {
    copies.push_back(tree::map(value, [](const c10::IValue& leaf) -> c10::IValue {
      if (!is_tensor(leaf)) return leaf;
      const at::Tensor& tensor = leaf.toTensor();
      return tensor.clone().requires_grad_(tensor.requires_grad());
    }));
  }
  return copies;
}

std::vector<at::Tensor> clones(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> copies;
  for (const at::Tensor& tensor : tensors) {
    copies.push_back(tensor.defined() ? tensor.clone() : tensor);
  }
  return copies;
}

bool are_tensors(const Values& values) {
  for (const c10::IValue& leaf : tree::leaves(tree::tuple(values))) {
    if (!leaf.isTensor() && !leaf.isNone()) return false;
  }
  return true;
}

void copy_values(const Values& from, const Values& to) {
  const c10::NoGradGuard no_grad;
  std::vector<at::Tensor> sources;
  std::vector<at::Tensor> targets;
  const Values given = tree::leaves(tree::tuple(from));
  const Values expected = tree::leaves(tree::tuple(to));
  bool fits = given.size() == expected.size();
  for (std::size_t i = 0; fits && i < given.size(); ++i) {
    if (!is_tensor(expected[i])) {
      fits = !is_tensor(given[i]) && given[i] == expected[i];
      continue;
    }
    fits = is_tensor(given[i]) && given[i].toTensor().sizes() == expected[i].toTensor().sizes() &&
           given[i].toTensor().scalar_type() == expected[i].toTensor().scalar_type();
    sources.push_back(given[i].toTensor());
    targets.push_back(expected[i].toTensor().detach());
  }
  require<MetadataError>(fits,
                         "a value of a different rank differs in shape or type from that of the "
                         "captured step; set PipelineOptions::graphs to kOff");
  if (!targets.empty()) at::_foreach_copy_(targets, sources, /*non_blocking=*/true);
}

}  // namespace stagecraft::detail
