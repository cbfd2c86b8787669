#pragma once

#include <ATen/core/Tensor.h>

#include "stagecraft/stage/grad_edge.h"

namespace stagecraft {

/// An input tensor of a stage: the same data, with a history that begins at the stage.
///
/// It is not a leaf. In-place operators are therefore allowed on it, and its gradient keeps the
/// strides that the stage computed (autograd changes those of a leaf). It shares storage and
/// version counter with the original tensor, so that autograd detects a change in place that would
/// break the backward of a different stage, as in the model without stages.
class StageInput {
 public:
  /// REQUIRES a tensor of a differentiable type (floating or complex).
  explicit StageInput(const at::Tensor& source);

  /// The tensor to compute with. Release it when the stage has read it: the graph keeps what it
  /// needs.
  const at::Tensor& tensor() const { return tensor_; }
  void release_tensor() { tensor_.reset(); }

  /// The edge at which its gradient arrives.
  const GradEdge& edge() const { return edge_; }
  /// Returns and drops the gradient of the last backward; undefined if there is none.
  at::Tensor take_grad() const;
  /// Sets the gradient. Called by a backward that captures gradients, in which the node does not
  /// run.
  void keep_grad(at::Tensor grad) const;

 private:
  at::Tensor tensor_;
  GradEdge edge_;
};

}  // namespace stagecraft
