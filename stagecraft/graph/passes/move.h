#pragma once

#include <unordered_map>

#include <ATen/core/Tensor.h>
#include <c10/core/Device.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// Copies of tensors on a device. Several graphs that share a tensor share its copy.
using MovedTensors = std::unordered_map<const c10::TensorImpl*, at::Tensor>;

/// The same graph on a device: its states and all results of its operators are there. States that
/// are already there are not copied. ArgumentError for a graph that changes memory that several of
/// its states share.
Graph move_to(const Graph& graph, c10::Device device, MovedTensors& moved);
Graph move_to(const Graph& graph, c10::Device device);

}  // namespace stagecraft
