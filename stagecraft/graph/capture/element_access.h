#pragma once

#include <string_view>

#include <ATen/core/function_schema.h>

namespace stagecraft {

/// Whether an operator takes tensors and returns something else to the host.
bool reads_back(const c10::FunctionSchema& schema);

/// Whether an operator that reads back reads only metadata, so that its results do not depend on
/// elements. `op` is the name of the operator, as in `aten::is_same_size`.
bool reads_metadata(std::string_view op);

/// Whether an operator reads the elements of its arguments, and not only their shapes.
bool reads_elements(std::string_view op);

/// Whether an operator returns memory to which it has not written.
bool returns_unwritten(std::string_view op);

}  // namespace stagecraft
