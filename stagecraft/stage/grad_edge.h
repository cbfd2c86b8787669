#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/edge.h>
#include <torch/csrc/autograd/function.h>

namespace stagecraft {

/// The edge of the autograd graph at which a gradient enters. Nothing else of an output must be
/// kept for its backward.
using GradEdge = torch::autograd::Edge;
/// A node of the autograd graph.
using GradNode = torch::autograd::Node;
/// A pointer to a node. Its type differs between versions of libtorch.
using GradNodePtr = decltype(GradEdge::function);

/// The edge of a tensor. Invalid if the tensor is undefined or requires no gradient.
GradEdge grad_edge_of(const at::Tensor& tensor);

}  // namespace stagecraft
