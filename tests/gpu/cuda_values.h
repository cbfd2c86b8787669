#pragma once

#include <memory>
#include <unistd.h>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>

#include "stagecraft/transport/transport.h"
#include "stagecraft/tree/tree.h"

namespace stagecraft {

/// Whether this machine has a GPU; does not touch CUDA, which would not survive a fork.
inline bool has_gpu() {
  return access("/dev/nvidiactl", F_OK) == 0;
}

/// The tensor on `device`, with the same strides.
inline at::Tensor moved(const at::Tensor& tensor, c10::Device device) {
  const bool can_move = tensor.defined() && tensor.layout() == c10::kStrided && !tensor.is_meta() &&
                        !tensor.is_quantized() && tensor.is_leaf();
  if (!can_move) return tensor;
  const at::NoGradGuard no_grad;
  auto sizes = tensor.sizes().vec();
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    if (tensor.stride(static_cast<int64_t>(i)) == 0 && sizes[i] > 1) sizes[i] = 1;
  }
  const auto base = tensor.as_strided(sizes, tensor.strides());
  auto copy = at::empty_strided(sizes, tensor.strides(), tensor.options().device(device));
  copy.copy_(base);
  copy = copy.as_strided(tensor.sizes(), tensor.strides());
  return copy.set_requires_grad(tensor.requires_grad());
}

inline c10::IValue moved(const c10::IValue& value, c10::Device device) {
  return tree::map(value, [&](const c10::IValue& leaf) {
    return leaf.isTensor() ? c10::IValue(moved(leaf.toTensor(), device)) : leaf;
  });
}

/// Lets every tensor travel as one of the GPU, so that tests with tensors of the CPU judge that.
class CudaValues final : public Transport {
 public:
  explicit CudaValues(Transport& inner) : inner_(inner) {}
  explicit CudaValues(std::unique_ptr<Transport> inner)
      : owned_(std::move(inner)), inner_(*owned_) {}

  Rank rank() const override { return inner_.rank(); }
  int32_t num_ranks() const override { return inner_.num_ranks(); }

  PendingPtr post_send(Rank to, const TransferId& id, c10::IValue value) override {
    return inner_.post_send(to, id, moved(value, gpu_));
  }
  PendingPtr post_receive(Rank from, const TransferId& id) override {
    return inner_.post_receive(from, id);
  }
  void wait_send(const PendingPtr& send, Deadline deadline) override {
    inner_.wait_send(send, deadline);
  }
  Received wait_receive(const PendingPtr& receive, Deadline deadline) override {
    auto received = inner_.wait_receive(receive, deadline);
    return {back(received.value), received.sent};
  }
  void barrier(Deadline deadline) override { inner_.barrier(deadline); }
  c10::IValue broadcast(c10::IValue value, Rank root, Deadline deadline) override {
    return back(inner_.broadcast(moved(value, gpu_), root, deadline));
  }
  at::Tensor all_reduce(const at::Tensor& tensor, Deadline deadline) override {
    return moved(inner_.all_reduce(moved(tensor, gpu_), deadline), c10::kCPU);
  }
  std::vector<c10::IValue> all_gather(c10::IValue value, Deadline deadline) override {
    auto values = inner_.all_gather(moved(value, gpu_), deadline);
    for (auto& each : values) each = back(each);
    return values;
  }
  void abort(AbortReason reason) override { inner_.abort(std::move(reason)); }
  std::shared_ptr<const AbortReason> abort_reason() const override { return inner_.abort_reason(); }
  void recover(Deadline deadline) override { inner_.recover(deadline); }
  void connect(std::span<const Rank> to, Deadline deadline) override {
    inner_.connect(to, deadline);
  }
  void publish(std::function<RankProgress()> tell) override { inner_.publish(std::move(tell)); }
  std::vector<HeardProgress> progress() const override { return inner_.progress(); }

 private:
  const c10::Device gpu_{c10::kCUDA, 0};

  static c10::IValue back(const c10::IValue& value) {
    tree::map(value, [](const c10::IValue& leaf) {
      const bool is_tensor = leaf.isTensor() && leaf.toTensor().defined();
      EXPECT_TRUE(!is_tensor || leaf.toTensor().is_cuda());
      return leaf;
    });
    return moved(value, c10::kCPU);
  }

  std::unique_ptr<Transport> owned_;
  Transport& inner_;
};

}  // namespace stagecraft
