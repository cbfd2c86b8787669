#pragma once

namespace stagecraft::detail {

/// Adds to torch's registry, on the first call, the operators that compiled programs call and torch
/// lacks: `stagecraft_compiled::grouped_mm` and its gradient of the weights,
/// `stagecraft_compiled::grouped_mm_weights` (stagecraft/graph/grouped_mm.h), and
/// `stagecraft_compiled::embedding_weights`, which is at::embedding_dense_backward under a name
/// that Inductor does not decompose. python/stagecraft/compile/operators.py registers the same
/// operators in Python, for the trace.
void register_compiled_operators();

}  // namespace stagecraft::detail
