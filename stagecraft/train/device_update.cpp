#include "stagecraft/train/device_update.h"

#include <algorithm>
#include <exception>
#include <utility>

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_foreach_norm.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/isfinite.h>
#include <ATen/ops/linalg_vector_norm.h>
#include <ATen/ops/logical_not.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/zeros.h>

#include "stagecraft/base/error.h"
#include "stagecraft/base/log.h"
#include "stagecraft/runtime/launch/device_failure.h"

namespace stagecraft::detail {

namespace {

// The number of sets of gradients that are kept: a few shapes of the batch, and steps that share an
// update.
constexpr std::size_t kMaxUpdates = 8;

}  // namespace

std::unique_ptr<DeviceUpdate> DeviceUpdate::make(AdamW& optimizer, double clip, GraphMode graphs) {
  std::optional<c10::Device> device;
  for (const ModelState& state : optimizer.states()) {
    for (const at::Tensor& copy : state.copies) {
      if (!device) device = copy.device();
      if (copy.device() != *device) return nullptr;
    }
  }
  if (!device) return nullptr;
  std::unique_ptr<DeviceProbe> probe = find_device_probe(*device);
  if (probe == nullptr) return nullptr;
  return std::make_unique<DeviceUpdate>(
      optimizer, clip, *device, std::move(probe),
      graphs == GraphMode::kOff ? nullptr : find_graph_device(*device));
}

DeviceUpdate::DeviceUpdate(AdamW& optimizer, double clip, c10::Device device,
                           std::unique_ptr<DeviceProbe> probe, std::unique_ptr<GraphDevice> graphs)
    : optimizer_(optimizer),
      clip_(clip),
      device_(device),
      probe_(std::move(probe)),
      graph_device_(std::move(graphs)),
      learning_rate_(at::zeros({}, at::TensorOptions(device).dtype(at::kFloat))),
      seen_(kMaxUpdates),
      graphs_(kMaxUpdates) {}

DeviceUpdate::~DeviceUpdate() = default;

DeviceUpdate::Key DeviceUpdate::key() const {
  Key key;
  for (const ModelState& state : optimizer_.states()) {
    for (const at::Tensor& copy : state.copies) {
      const at::Tensor& grad = copy.grad();
      key.push_back(copy.const_data_ptr());
      key.push_back(grad.defined() ? grad.const_data_ptr() : nullptr);
    }
  }
  return key;
}

at::Tensor DeviceUpdate::compute() {
  std::vector<at::Tensor> grads;
  for (const ModelState& state : optimizer_.states()) {
    if (state.tensor().grad().defined()) grads.push_back(state.tensor().grad().detach());
  }
  if (grads.empty()) return at::zeros({}, learning_rate_.options());
  at::Tensor norm =
      at::linalg_vector_norm(at::stack(at::_foreach_norm(grads, 2)), 2).to(at::kFloat);
  AdamW::OnDevice on_device{.learning_rate = learning_rate_,
                            .is_skipped = at::logical_not(at::isfinite(norm)).to(at::kFloat)};
  // As clip_grads: multiplied by clip / (norm + 1e-6) if that is below 1.
  if (clip_ > 0) on_device.divisor = norm.add(1e-6).div_(clip_).clamp_min_(1);
  optimizer_.step(on_device);
  return norm;
}

DeviceUpdate::Captured DeviceUpdate::capture() {
  Captured update;
  for (const ModelState& state : optimizer_.states()) {
    for (const at::Tensor& copy : state.copies) update.grads.push_back(copy.grad());
  }
  const std::unique_ptr<StreamScope> stream = graph_device_->enter();
  try {
    graph_device_->begin_capture();
    update.norm = compute();
    update.graph = graph_device_->end_capture();
  } catch (...) {
    graph_device_->cancel_capture();
    throw;
  }
  return update;
}

at::Tensor DeviceUpdate::run(double learning_rate) {
  const at::NoGradGuard no_grad;
  learning_rate_.fill_(learning_rate);
  if (!graph_device_) return compute();
  const Key gradients = key();
  Captured* update = graphs_.find(gradients);
  if (update == nullptr) {
    // The gradients of steps that are run have different memory in every update.
    if (seen_.find(gradients) == nullptr) {
      seen_.add(gradients, true);
      return compute();
    }
    try {
      update = &graphs_.add(gradients, capture());
    } catch (const std::exception&) {
      announce("the update of the weights cannot be captured as a graph and is run instead: " +
               stagecraft::describe(std::current_exception()));
      graphs_.clear();  // a graph must not outlive its device
      graph_device_.reset();
      return compute();
    }
    seen_.release(gradients);
  }
  update->graph->replay({});
  ++replayed_;
  return update->norm;
}

void DeviceUpdate::rethrow_explained() {
  detail::rethrow_explained(probe_.get(), device_);
}

}  // namespace stagecraft::detail
