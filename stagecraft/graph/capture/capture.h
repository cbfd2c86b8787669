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
  /// Where it stands; the example has the same size at all of them. None: dimension 0 of the first
  /// tensor, and of every other tensor that has the same size there.
  std::vector<Place> places = {};
  /// The size at which the graph is compared with the model, and up to which it may then be used: a
  /// model that pads to 64 rows looks like any other below. None: 4 n + 3, where the example has n.
  std::optional<int64_t> probe = {};
};

/// What a capture may assume of the model.
struct CaptureOptions {
  /// Empty: every size is that of the example, and the graph takes no other.
  std::vector<SizeSpec> sizes = {SizeSpec{}};
  /// What at::equal says in the forward: true for one and the same tensor, false for two, whatever
  /// their elements. torch::nn's attention asks it of query and key, to compute less where they are
  /// one. Otherwise a question about two tensors is an error, like all that reads elements.
  bool equal_by_identity = false;
};

/// The model as a graph that gives the same bits, forward and backward, at all sizes of the
/// dimensions named in the options.
///
/// It runs the model several times: at the sizes of the example and one above, to see how each
/// number follows them, and at a third size, where the graph must agree operator by operator and
/// bit for bit, gradients included. The graph refuses larger sizes than those. The other inputs are
/// made from the example by repeating it. Afterwards buffers, gradients and random states are as
/// before. The graph holds the model's own parameters and
/// buffers.
///
/// Throws CaptureError, which names the operator and the module, for what a graph cannot hold:
/// values read back to the host, sizes read from a shape that depends on elements, custom autograd
/// functions, hooks set inside the forward, numbers that do not follow the sizes, operators that
/// come and go with them, gradients that the graph would not give.
Graph capture(const StageBody& model, const Arguments& example, const CaptureOptions& options = {});

}  // namespace stagecraft
