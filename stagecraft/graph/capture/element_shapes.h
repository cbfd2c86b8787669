#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/graph/capture/trace.h"

namespace stagecraft {

/// The argument whose elements determine the shape of an operator's result, as in nonzero() or in
/// indexing by a mask. Nothing for most operators.
std::optional<std::size_t> shape_deciding_argument(const c10::FunctionSchema& schema);

/// The shape-deciding argument with different elements, so that the result has a different shape.
/// The same argument if elements do not matter (indices that are not masks).
c10::IValue with_other_elements(const c10::IValue& argument, const c10::FunctionSchema& schema,
                                ElementChange change);

}  // namespace stagecraft
