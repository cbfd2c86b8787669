#pragma once

#include <span>
#include <utility>
#include <vector>

#include <ATen/core/Tensor.h>

#include "stagecraft/stage/grad_edge.h"
#include "stagecraft/stage/stage_input.h"

namespace stagecraft {

/// An output and its gradient.
struct GradRoot {
  GradEdge edge;
  at::Tensor grad;  ///< undefined: the output takes no part in the backward
};

/// The weight half of a backward, between I and W. It keeps alive only what W reads. Movable; empty
/// after it was run.
struct WeightWork {
  std::vector<GradRoot> roots;

  bool empty() const { return roots.empty(); }
};

/// The three backwards of one forward, with bitwise equal gradients:
///
///   backward_full(roots);                                             B
///   WeightWork w = backward_input(roots, inputs);                     I
///   backward_weight(std::move(w));                                    W
///
/// B and I leave the gradients in the inputs (StageInput::take_grad). B and W add to the .grad of
/// the parameters, like plain autograd. The graph is consumed. A gradient must have the shape of
/// its output (MetadataError). With `keep_graph` the graph is kept, and can be used again.
///
/// A hook on a tensor runs once: in I if the tensor leads to an input, otherwise in W. A custom
/// autograd function that leads to inputs and to parameters is called in I and in W, each time for
/// the gradients that are needed. If no input needs a gradient, I does nothing and W does
/// everything.
void backward_full(std::vector<GradRoot> roots, bool keep_graph = false);
WeightWork backward_input(std::vector<GradRoot> roots, std::span<const StageInput> inputs);
void backward_weight(WeightWork work);

/// The weight half of a backward at one border node: a node that leads to inputs and to parameters.
struct BorderWork {
  GradNodePtr node;
  std::vector<at::Tensor> grads;  ///< by output of the node; undefined if there is none
  /// The parameters that this node leads to. A parameter may be in several.
  std::vector<at::Tensor> parameters;
};

/// The result of an input backward for any tensors of a live graph.
struct InputBackward {
  std::vector<at::Tensor> input_grads;  ///< undefined if there is no gradient
  std::vector<BorderWork> borders;
};

/// I for inputs that are tensors of a live graph, leaves too, by their edges. Adds to no .grad. The
/// graph that leads from the roots to the inputs is cut. A root that leads to no input is a border
/// of its own.
InputBackward backward_input(std::vector<GradRoot> roots, std::span<const GradEdge> inputs);
/// W from borders: adds to the .grad of the parameters. With `keep_graph` it can be called again.
void backward_weight(std::span<const BorderWork> borders, bool keep_graph);

/// Continues a backward into the history of tensors from outside, such as model inputs that require
/// gradients. Takes pairs of a tensor and its gradient, and runs one pass through their common
/// history.
void backward_into(const std::vector<std::pair<at::Tensor, at::Tensor>>& grads);

}  // namespace stagecraft
