#pragma once

namespace stagecraft::detail {

/// Adds the operators that compiled programs call and that torch does not have to torch's registry,
/// on the first call: `stagecraft_compiled::grouped_mm` and its gradient of the weights,
/// `stagecraft_compiled::grouped_mm_weights` (stagecraft/graph/grouped_mm.h), and
/// `stagecraft_compiled::embedding_weights`, which is at::embedding_dense_backward under a name
/// that Inductor does not look into. python/stagecraft/compile/operators.py has the same ones, for
/// the trace.
void register_compiled_operators();

}  // namespace stagecraft::detail
