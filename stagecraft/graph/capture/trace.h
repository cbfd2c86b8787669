#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// How many elements are chosen by an operator whose result shape depends on elements.
enum class ElementChange : uint8_t { kOne, kNone, kAll };

/// Options of a trace.
struct TraceOptions {
  /// Floating-point arguments require gradients, so that the history of all values computed from
  /// them can be checked.
  bool has_input_grads = true;
  /// See CaptureOptions.
  bool equal_by_identity = false;
};

/// A model that cannot be captured. The message names the operator, and the module in or after
/// which it ran.
class CaptureError : public Error {
 public:
  using Error::Error;
};

/// Runs the model once and records every operator, with all numbers as they are at the sizes of
/// these arguments. `forward` gets copies of the arguments. Afterwards buffers, gradients and
/// random states are restored. Exceptions of `forward` are passed on. The result is neither
/// verified nor free of dead code.
GraphParts trace(const StageBody& model, const Arguments& arguments,
                 const TraceOptions& options = {});

/// A trace in which operators whose result shapes depend on elements, such as nonzero() or indexing
/// by a mask, get different elements than in the model. It has the nodes and values up to where the
/// model fails. Results of such operators have different shapes; numbers among the arguments that
/// differ were read from these shapes.
struct OtherElements {
  GraphParts parts;
  std::string failure = {};  ///< what the model threw; empty if it did not fail
};
OtherElements trace_with_other_elements(const StageBody& model, const Arguments& arguments,
                                        ElementChange change, const TraceOptions& options = {});

}  // namespace stagecraft
