#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace stagecraft {

/// A place in the autograd graph where a gradient enters: all that has to be kept of an output for
/// its backward.
using GradEdge = torch::autograd::Edge;
/// A node of the autograd graph.
using GradNode = torch::autograd::Node;
/// Nodes are owned by different kinds of pointers in different versions of libtorch.
using GradNodePtr = decltype(GradEdge::function);

/// Invalid when the tensor is undefined or requires no gradient.
GradEdge grad_edge_of(const at::Tensor& tensor);

}  // namespace stagecraft
