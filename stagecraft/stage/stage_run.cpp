#include "stagecraft/stage/stage_run.h"

#include <utility>

#include <ATen/ops/full.h>

#include "stagecraft/stage/grad_value.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft::detail {

namespace {

bool is_same(const c10::TensorOptions& a, const c10::TensorOptions& b) {
  return a.dtype() == b.dtype() && a.device() == b.device();
}

}  // namespace

at::Tensor copied(const at::Tensor& tensor, c10::Device device) {
  // A copy to a device is ordered by the device's stream.
  return tensor.to(device, /*non_blocking=*/!device.is_cpu());
}

const at::Tensor& LossGrad::get(const LossEdge& loss, double wanted) {
  if (!tensor.defined() || weight != wanted || tensor.dim() != loss.dim ||
      !is_same(tensor.options(), loss.options)) {
    weight = wanted;
    tensor =
        at::full(std::vector<int64_t>(static_cast<std::size_t>(loss.dim), 1), wanted, loss.options);
  }
  return tensor;
}

void StageRun::clear() {
  again.reset();
  is_input_done = has_loss = false;
  inputs.clear();
  arguments.clear();
  outputs.clear();
  losses.clear();
  added_loss.reset();
  weight.roots.clear();
  own_weight_work = nullptr;
}

c10::IValue StageRun::enter(const c10::IValue& value, c10::Device device) {
  ValueInputs& entry = arguments.emplace_back();
  if (value.isTensor()) {
    entry.is_tensor = true;
    return enter_tensor(value.toTensor(), device, entry);
  }
  // A shortcut for numbers and None: this runs for every argument of every microbatch.
  if (!value.isTuple() && !value.isList() && !value.isGenericDict()) return value;
  return tree::map(value, [&](const c10::IValue& leaf) {
    return leaf.isTensor() ? c10::IValue(enter_tensor(leaf.toTensor(), device, entry)) : leaf;
  });
}

at::Tensor StageRun::enter_tensor(const at::Tensor& tensor, c10::Device device,
                                  ValueInputs& entry) {
  if (!tensor.defined()) {
    entry.inputs.push_back(kNoInput);
    return tensor;
  }
  const bool is_elsewhere = tensor.device() != device;
  if (!tensor.requires_grad()) {
    entry.inputs.push_back(kNoInput);
    return is_elsewhere ? copied(tensor, device) : tensor;
  }
  entry.inputs.push_back(static_cast<int32_t>(inputs.size()));
  // Detached first: a recorded copy would continue the history of the sender into this stage.
  StageInput& input = inputs.emplace_back(is_elsewhere ? copied(tensor.detach(), device) : tensor);
  at::Tensor seen = input.tensor();
  // The graph keeps the tensors that the backward reads. The others can be released after the
  // forward.
  input.release_tensor();
  return seen;
}

void StageRun::add_output(const c10::IValue& output) {
  std::vector<GradEdge>& edges = outputs.emplace_back();
  for (const at::Tensor& tensor : tensors_of(output)) edges.push_back(grad_edge_of(tensor));
}

void StageRun::add_loss(const at::Tensor& loss) {
  GradEdge edge = grad_edge_of(loss);
  // The gradient of a loss must have its dtype, device and number of dimensions, and is made after
  // the loss has been released.
  if (edge.is_valid()) losses.push_back({std::move(edge), loss.options(), loss.dim()});
}

std::vector<GradRoot> StageRun::make_roots(const std::vector<c10::IValue>& grads,
                                           double loss_weight, LossGrad& loss_grad) const {
  std::vector<GradRoot> roots;
  for (std::size_t i = 0; i < grads.size(); ++i) {
    if (grads[i].isNone()) continue;
    const std::vector<GradEdge>& edges = outputs[i];
    std::vector<at::Tensor> tensors = grads_of(grads[i], edges.size());
    for (std::size_t j = 0; j < edges.size(); ++j) {
      if (edges[j].is_valid()) roots.push_back({edges[j], std::move(tensors[j])});
    }
  }
  // In a fixed order, outputs first: the autograd engine adds gradients of one node in the order in
  // which they arrive, and the order of a sum decides its last bits.
  for (const LossEdge& loss : losses)
    roots.push_back({loss.edge, loss_grad.get(loss, loss_weight)});
  return roots;
}

std::vector<c10::IValue> StageRun::take_input_grads() const {
  std::vector<c10::IValue> grads;
  grads.reserve(arguments.size());
  for (const ValueInputs& argument : arguments) {
    if (argument.inputs.empty()) {
      grads.emplace_back();
      continue;
    }
    std::vector<at::Tensor> tensors;
    tensors.reserve(argument.inputs.size());
    for (const int32_t input : argument.inputs) {
      tensors.push_back(input == kNoInput ? at::Tensor()
                                          : inputs[static_cast<std::size_t>(input)].take_grad());
    }
    grads.push_back(make_grad_value(argument.is_tensor, std::move(tensors)));
  }
  return grads;
}

}  // namespace stagecraft::detail
