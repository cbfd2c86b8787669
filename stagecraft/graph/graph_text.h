#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A graph as text, one line for each part:
///
///   graph
///   size B = 4, at least 1, at most 11
///   parameter %fc.weight: float32[8, 16] &0
///   parameter %fc.bias: float32[8]
///   args (%x: float32[B, 16],)
///   kwargs {}
///   %t = aten::t(self=%fc.weight): float32[16, 8] &0
///   %addmm = aten::addmm(self=%fc.bias, mat1=%x, mat2=%t, beta=1, alpha=1): float32[B, 8]
///   return %addmm
///
/// An operator can be followed by `no_grad`, `autocast(cpu, bfloat16)` and `in encoder.mask`. The
/// two branches of `stagecraft::cond` follow it, indented. The graph of an exported model begins
/// with `graph exported`. Sizes that are computed or measured, and guards, read
///
///   size half = 4, as floor_div(S, 2)
///   size n = 3, from %nonzero dimension 0
///   require even: "args[0].size(1) % 2 == 0"
///
/// The elements of tensors are not part of the text. Everything else is: parse_graph(to_text(g),
/// tensors of g) is the same graph.
std::string to_text(const Graph& graph);

/// `float32[B, 16]`, then the device if it is not the CPU, then, as ` &2`, the number of the memory
/// that the value shares with other values. `?7` is a dimension that depends on elements, 7 in the
/// example.
std::string to_text(const GraphValue& value, std::span<const std::string> size_names);
/// `Tensor[B, 16] float32`, for messages.
std::string describe(const GraphValue& value, std::span<const std::string> size_names);

/// Returns the tensor of a parameter, buffer or constant, by its name.
using StateReader = std::function<at::Tensor(const std::string& name)>;

/// The inverse of to_text. Throws ParseError, with line and column, for text that is not a graph,
/// and GraphError if verify() rejects the graph, for example because a tensor does not have the
/// type and shape in the text.
Graph parse_graph(std::string_view text, const StateReader& read_state);

}  // namespace stagecraft
