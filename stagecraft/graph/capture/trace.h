#pragma once

#include <cstdint>
#include <string>

#include "stagecraft/graph/graph.h"
#include "stagecraft/tree/arguments.h"
#include "stagecraft/tree/stage_body.h"

namespace stagecraft {

/// How many elements are chosen where elements decide a shape.
enum class ElementChange : uint8_t { kOne, kNone, kAll };

/// Options of a trace.
struct TraceOptions {
  /// Floating-point arguments require gradients, so that the history of all that is made of them
  /// can be looked at.
  bool has_input_grads = true;
  /// See CaptureOptions.
  bool equal_by_identity = false;
};

/// A model that cannot be captured; the message names the operator, and the module that it ran in
/// or behind.
class CaptureError : public Error {
 public:
  using Error::Error;
};

/// Runs the model once and writes down every operator, with all numbers as they are at the sizes of
/// these arguments. Buffers, gradients and random states are afterwards as before; what `forward`
/// throws is passed on. It gets copies of the arguments. No verification, no dead code elimination.
GraphParts trace(const StageBody& model, const Arguments& arguments,
                 const TraceOptions& options = {});

/// The same, but where elements decide the shape of a result, as in nonzero() or in indexing by a
/// mask, the operator finds others than the model's. Nodes and values up to where the model fails,
/// and whether it did. Such results have other shapes then; numbers among the arguments that differ
/// were read from them.
struct OtherElements {
  GraphParts parts;
  std::string failure = {};  ///< what the model threw; empty where it came to its end
};
OtherElements trace_with_other_elements(const StageBody& model, const Arguments& arguments,
                                        ElementChange change, const TraceOptions& options = {});

}  // namespace stagecraft
