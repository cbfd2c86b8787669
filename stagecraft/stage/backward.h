#pragma once

#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/stage/grad_edge.h"
#include "stagecraft/stage/stage_input.h"

namespace stagecraft {

/// An output and the gradient that came back for it.
struct GradRoot {
  GradEdge edge;
  at::Tensor grad;  ///< undefined: none came, and the output takes no part
};

/// The weight half of a backward, between I and W. Keeps alive what W reads and nothing else.
/// Movable; empty once it was run.
struct WeightWork {
  std::vector<GradRoot> roots;

  bool empty() const { return roots.empty(); }
};

/// The three backwards of one forward, bit for bit the same gradients:
///
///   backward_full(roots);                                             B
///   WeightWork w = backward_input(roots, inputs);                     I
///   backward_weight(std::move(w));                                    W
///
/// B and I leave the gradients of the inputs in them (StageInput::take_grad); B and W add to the
/// .grad of the parameters, as plain autograd does. The graph is used up. A gradient must have the
/// shape of its output (MetadataError).
///
/// Hooks on tensors run once, in I where they are on the way to an input, else in W. A custom
/// autograd function that has both inputs and parameters behind it is called in I and in W, each
/// time for the gradients that are needed then. Where no input needs a gradient, I does nothing and
/// W all.
void backward_full(std::vector<GradRoot> roots);
WeightWork backward_input(std::vector<GradRoot> roots, std::span<const StageInput> inputs);
void backward_weight(WeightWork work);

/// Continues a backward into the history of tensors that came from outside, as inputs of the model
/// that require grad: pairs of a tensor and its gradient, in one pass through what they share.
void backward_into(const std::vector<std::pair<at::Tensor, at::Tensor>>& grads);

}  // namespace stagecraft
