#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "stagecraft/graph/capture/trace.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"

namespace stagecraft {

/// A dimension of the inputs that may change from call to call.
struct SizeSpec {
  /// A dimension of an input.
  struct Place {
    std::string input;  ///< `args[0]`, `args[1]["ids"]`, `kwargs["mask"]`
    int64_t dim = 0;
  };

  std::string name = "B";
  /// The dimensions with this size, which must be equal in the example. Empty: dimension 0 of the
  /// first tensor, and of every other tensor that has the same size there.
  std::vector<Place> places = {};
  /// The size at which the graph is compared with the model. The graph refuses larger sizes,
  /// because a model that pads to 64 rows looks like any other model below 64. None: 4 n + 3, where
  /// n is the size in the example.
  std::optional<int64_t> probe = {};
};

/// What a capture may assume about the model.
struct CaptureOptions {
  /// Empty: the graph takes only the sizes of the example.
  std::vector<SizeSpec> sizes = {SizeSpec{}};
  /// at::equal in the forward returns whether both arguments are the same tensor, whatever their
  /// elements. torch::nn's attention calls it for query and key, to compute less if they are the
  /// same. Without this option a call with two different tensors is an error, like everything that
  /// reads elements.
  bool equal_by_identity = false;
};

/// Returns the model as a graph with bitwise equal results, forward and backward, at all sizes of
/// the dimensions named in the options.
///
/// It runs the model several times: at the sizes of the example and one above, to find how each
/// number depends on them, and at a third size, where the graph must have the same operators and
/// bitwise equal results and gradients. The graph refuses larger sizes than that. Inputs of other
/// sizes are made by repeating the example. Afterwards buffers, gradients and random states are
/// restored. The graph holds the model's own parameters and buffers.
///
/// Throws CaptureError, which names the operator and the module, for what a graph cannot represent:
/// values read back to the host, sizes read from a shape that depends on elements, custom autograd
/// functions, hooks registered inside the forward, numbers that are not an expression of the sizes,
/// operators that are called only at some sizes, and gradients that the graph would not compute.
Graph capture(const StageBody& model, const Arguments& example, const CaptureOptions& options = {});

}  // namespace stagecraft
