#include "stagecraft/stage/recomputation.h"

#include <cstddef>
#include <utility>

#include "stagecraft/stage/grad_value.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

namespace {

std::vector<uint32_t> versions_of(const Arguments& arguments) {
  std::vector<uint32_t> versions;
  auto add = [&](const c10::IValue& value) {
    for (const at::Tensor& tensor : tensors_of(value)) {
      // Inference tensors have no version counter. They cannot be changed in place outside
      // inference mode.
      if (tensor.defined() && !tensor.is_inference()) {
        versions.push_back(static_cast<uint32_t>(tensor._version()));
      }
    }
  };
  for (const c10::IValue& value : arguments.args) add(value);
  for (const auto& [name, value] : arguments.kwargs) add(value);
  return versions;
}

}  // namespace

Recomputation::Recomputation(Arguments arguments, ForwardState state)
    : arguments_(std::move(arguments)),
      versions_(versions_of(arguments_)),
      state_(std::move(state)) {}

bool Recomputation::is_changed() const {
  return versions_of(arguments_) != versions_;
}

at::Tensor Recomputation::cut(const at::Tensor& tensor, Output& output) {
  if (!tensor.defined() || (!tensor.is_floating_point() && !tensor.is_complex())) {
    output.ends.push_back(-1);
    return tensor;
  }
  output.ends.push_back(static_cast<int32_t>(ends_.size()));
  // Every floating-point output, also one that will turn out to need no gradient: without a graph
  // the first run cannot tell.
  StageInput& end = ends_.emplace_back(tensor);
  at::Tensor seen = end.tensor();
  end.release_tensor();
  return seen;
}

c10::IValue Recomputation::cut(const c10::IValue& output) {
  auto cut_value = [&](const c10::IValue& value) -> c10::IValue {
    Output& entry = outputs_.emplace_back();
    if (value.isTensor()) {
      entry.is_tensor = true;
      return cut(value.toTensor(), entry);
    }
    return tree::map(value, [&](const c10::IValue& leaf) -> c10::IValue {
      return leaf.isTensor() ? c10::IValue(cut(leaf.toTensor(), entry)) : leaf;
    });
  };
  // Output by output, because gradients come by output (grad_value.h).
  if (!output.isTuple() && !output.isList()) return cut_value(output);
  std::vector<c10::IValue> values;
  for (const c10::IValue& value : outputs_of(output)) values.push_back(cut_value(value));
  return output.isTuple() ? tree::tuple(std::move(values)) : tree::list(std::move(values));
}

std::vector<c10::IValue> Recomputation::take_output_grads() const {
  std::vector<c10::IValue> grads;
  grads.reserve(outputs_.size());
  for (const Output& output : outputs_) {
    if (output.ends.empty()) {
      grads.emplace_back();
      continue;
    }
    std::vector<at::Tensor> tensors;
    for (const int32_t end : output.ends) {
      tensors.push_back(end < 0 ? at::Tensor() : ends_[static_cast<std::size_t>(end)].take_grad());
    }
    grads.push_back(make_grad_value(output.is_tensor, std::move(tensors)));
  }
  return grads;
}

}  // namespace stagecraft
