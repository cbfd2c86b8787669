#include "stagecraft/runtime/results.h"

#include <utility>

#include <ATen/core/Tensor.h>
#include <c10/core/GradMode.h>

#include "stagecraft/base/check.h"
#include "stagecraft/microbatch/merge.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

c10::IValue to_value(const std::vector<at::Tensor>& tensors) {
  std::vector<c10::IValue> values;
  for (const at::Tensor& tensor : tensors) {
    values.push_back(tensor.defined() ? c10::IValue(tensor) : c10::IValue());
  }
  return tree::tuple(std::move(values));
}

std::vector<at::Tensor> to_tensors(const c10::IValue& value) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& entry : value.toTupleRef().elements()) {
    tensors.push_back(entry.isTensor() ? entry.toTensor() : at::Tensor());
  }
  return tensors;
}

}  // namespace

StepResult take_result(Executor& executor, const StepOptions& options, bool has_last_stage) {
  RankResults own = std::exchange(executor.actions().results(), {});
  StepResult result;
  result.added_losses = std::move(own.added_losses);
  result.weights = executor.weights();
  if (!has_last_stage) return result;
  if (!own.losses.empty() && own.losses.front().defined()) result.losses = std::move(own.losses);
  if (options.outputs == OutputMode::kMerged) {
    result.output = merge_chunks(own.outputs, options.output_spec);
  } else if (options.outputs == OutputMode::kEach) {
    result.outputs = std::move(own.outputs);
  }
  return result;
}

c10::IValue to_value(const StepResult& result) {
  std::vector<c10::IValue> weights(result.weights.begin(), result.weights.end());
  return tree::tuple({result.output, tree::tuple(result.outputs), to_value(result.losses),
                      tree::tuple(std::move(weights))});
}

StepResult result_of(const c10::IValue& value) {
  const auto& parts = value.toTupleRef().elements();
  StepResult result;
  result.output = parts[0];
  const auto& outputs = parts[1].toTupleRef().elements();
  result.outputs.assign(outputs.begin(), outputs.end());
  result.losses = to_tensors(parts[2]);
  for (const c10::IValue& weight : parts[3].toTupleRef().elements()) {
    result.weights.push_back(weight.toDouble());
  }
  return result;
}

void check_grad_mode() {
  require<ArgumentError>(
      c10::GradMode::is_enabled(),
      "step: gradients are disabled on this thread (NoGradGuard); call eval instead");
}

}  // namespace stagecraft
