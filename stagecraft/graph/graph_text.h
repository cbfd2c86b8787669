#pragma once

#include <functional>
#include <span>
#include <string>
#include <string_view>

#include <ATen/core/Tensor.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft {

/// A graph as text, one line for each thing that it has:
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
/// Behind an operator may stand `no_grad`, `autocast(cpu, bfloat16)` and `in encoder.mask`; below
/// `stagecraft::cond`, indented, its two branches. The graph of an archive begins with `graph
/// exported`. Sizes that follow from others and what must hold for them read
///
///   size half = 4, as floor_div(S, 2)
///   size n = 3, from %nonzero dimension 0
///   require even: "args[0].size(1) % 2 == 0"
///
/// Values
/// of tensors are not part of it; all else is: parse_graph(to_text(g), tensors of g) is the same
/// graph.
std::string to_text(const Graph& graph);

/// `float32[B, 16]`; the device is named where it is not the CPU, and behind it, as ` &2`, the
/// number of the memory that the value shares with others. `?7` is a dimension that depends on
/// elements, 7 in the example.
std::string to_text(const GraphValue& value, std::span<const std::string> size_names);
/// `Tensor[B, 16] float32`, as messages have it.
std::string describe(const GraphValue& value, std::span<const std::string> size_names);

/// Gives the tensor of a parameter, buffer or constant, by its name.
using StateReader = std::function<at::Tensor(const std::string& name)>;

/// The inverse of to_text. Throws ParseError, with line and column, for a text that is none, and
/// GraphError for one that verify() refuses, as where a tensor is not of the type and shape that
/// the text says.
Graph parse_graph(std::string_view text, const StateReader& read_state);

}  // namespace stagecraft
