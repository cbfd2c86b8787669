#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>
#include <c10/core/Device.h>
#include <c10/core/TensorOptions.h>

#include "stagecraft/stage/backward.h"
#include "stagecraft/stage/grad_edge.h"
#include "stagecraft/stage/recomputation.h"
#include "stagecraft/stage/stage.h"
#include "stagecraft/stage/stage_input.h"

namespace stagecraft::detail {

/// A loss of a microbatch, from which its backward starts.
struct LossEdge {
  GradEdge edge;
  c10::TensorOptions options;
  int64_t dim = 0;
};

/// The gradient of a loss, kept for the next microbatch: most have the same weight. Code that adds
/// to it makes a copy, because it is held here.
struct LossGrad {
  double weight = 0;
  at::Tensor tensor;

  const at::Tensor& get(const LossEdge& loss, double wanted);
};

/// The data that a stage keeps of one microbatch from its forward to the end of its backward.
struct StageRun {
  /// Which of `inputs` each tensor of an argument became, or kNoInput.
  struct ValueInputs {
    bool is_tensor = false;
    std::vector<int32_t> inputs;
  };
  static constexpr int32_t kNoInput = -1;

  bool is_input_done = false;
  bool has_loss = false;
  std::vector<StageInput> inputs;
  std::vector<ValueInputs> arguments;          // args, then kwargs
  std::vector<std::vector<GradEdge>> outputs;  // where the gradients of their tensors enter
  std::vector<LossEdge> losses;
  at::Tensor added_loss;
  WeightWork weight;
  std::function<void()> own_weight_work;
  std::unique_ptr<Recomputation> again;  // set if the forward kept no graph
  ForwardOptions options;                // of that forward

  /// Releases everything, so that the object can be used for a different microbatch.
  void clear();

  /// The value as the stage sees it, on `device`. Tensors that require gradients become inputs.
  c10::IValue enter(const c10::IValue& value, c10::Device device);
  void add_output(const c10::IValue& output);
  /// A loss without a history is left out.
  void add_loss(const at::Tensor& loss);

  /// Where the backward starts: `grads` of the outputs (None: no gradient), and the losses.
  std::vector<GradRoot> make_roots(const std::vector<c10::IValue>& grads, double loss_weight,
                                   LossGrad& loss_grad) const;
  /// After the backward: by argument, in the form of grad_value.h.
  std::vector<c10::IValue> take_input_grads() const;

 private:
  at::Tensor enter_tensor(const at::Tensor& tensor, c10::Device device, ValueInputs& entry);
};

/// A copy on `device`. A copy to the host waits for the device: nothing else would prevent a read
/// that comes too early.
at::Tensor copied(const at::Tensor& tensor, c10::Device device);

}  // namespace stagecraft::detail
