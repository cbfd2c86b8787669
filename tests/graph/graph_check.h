#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "stagecraft/graph/capture/capture.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// Arguments for a size that the test chooses.
using MakeArguments = std::function<Arguments(int64_t size)>;

/// Captures the model at size 4 and expects of the graph, at several sizes, the model's outputs,
/// buffers and gradients of inputs and parameters, bit for bit; and that capture has changed
/// nothing. Returns the graph.
Graph expect_same(const StageBody& model, const MakeArguments& arguments,
                  const CaptureOptions& options = {}, std::vector<int64_t> sizes = {4, 5, 1, 9});

/// The tensors of a graph, for parsing its text.
at::Tensor state_of(const Graph& graph, const std::string& name);

/// Expects that the graph comes back from its text.
void expect_round_trip(const Graph& graph);

}  // namespace stagecraft
