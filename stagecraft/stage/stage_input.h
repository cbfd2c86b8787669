#pragma once

#include <ATen/core/Tensor.h>

#include "stagecraft/stage/grad_edge.h"

namespace stagecraft {

/// A tensor as a stage sees it: the same data, with a history that begins at the stage's border.
///
/// It is not a leaf: operators in place are allowed on it, and its gradient arrives as the stage
/// made it, with the same strides (a leaf's is laid out anew). Storage and version counter are
/// shared with the tensor it was made from, so that a change in place which would spoil another
/// stage's backward is noticed there, as in the uncut model.
class StageInput {
 public:
  /// REQUIRES a tensor of a differentiable type (floating or complex).
  explicit StageInput(const at::Tensor& source);

  /// What to compute with. Let go of it when the stage has read it: the graph keeps what it needs.
  const at::Tensor& tensor() const { return tensor_; }
  void release_tensor() { tensor_.reset(); }

  /// Where its gradient arrives.
  const GradEdge& edge() const { return edge_; }
  /// The gradient that the last backward brought, and forgets it; undefined when none came.
  at::Tensor take_grad() const;
  /// What a backward that captures gradients calls in the place of the node.
  void keep_grad(at::Tensor grad) const;

 private:
  at::Tensor tensor_;
  GradEdge edge_;
};

}  // namespace stagecraft
