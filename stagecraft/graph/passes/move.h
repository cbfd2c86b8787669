#pragma once

#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Which tensors were copied to another device, and where to: several graphs that share a tensor
/// share its copy.
using MovedTensors = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

/// The same graph on another device: its tensors are there (those that were, are the same tensors),
/// and so is everything that its operators make. ArgumentError for a graph that changes memory
/// which several of its states share.
Graph move_to(const Graph& graph, c10::Device device, MovedTensors& moved);
Graph move_to(const Graph& graph, c10::Device device);

}  // namespace stagecraft
