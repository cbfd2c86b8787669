#include "tests/zoo_pt2/zoo_step.h"

#include <cstddef>

#include <ATen/TensorOperators.h>

#include "stagecraft/tree/tree.h"
#include "tests/zoo_pt2/zoo.h"

namespace stagecraft {

c10::IValue seeded_loss(const c10::IValue& output, const c10::IValue& target, const Kwargs&) {
  const std::vector<c10::IValue> outputs = tree::flatten(output).leaves;
  const std::vector<c10::IValue> seeds = target.toListRef().vec();
  at::Tensor sum;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!seeds.at(i).isTensor()) continue;
    const at::Tensor product = (outputs[i].toTensor() * seeds[i].toTensor()).sum();
    sum = sum.defined() ? sum + product : product;
  }
  return sum;
}

Microbatches microbatches_of(const std::vector<oracle::Case>& cases) {
  Microbatches batch;
  for (const oracle::Case& one : cases) {
    batch.inputs.push_back(arguments_of(one));
    batch.targets.push_back(one.get("grad_outputs"));
    batch.weights.push_back(1);
  }
  return batch;
}

std::map<std::string, at::Tensor> summed_grads(const std::vector<oracle::Case>& cases) {
  std::map<std::string, at::Tensor> sums;
  for (const oracle::Case& one : cases) {
    for (const auto& entry : one.get("grads").toGenericDict()) {
      at::Tensor& sum = sums[entry.key().toStringRef()];
      if (!entry.value().isTensor()) continue;
      sum = sum.defined() ? sum + entry.value().toTensor() : entry.value().toTensor().clone();
    }
  }
  return sums;
}

}  // namespace stagecraft
