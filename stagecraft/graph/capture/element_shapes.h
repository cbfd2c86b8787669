#pragma once

#include <cstddef>
#include <optional>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>

#include "stagecraft/graph/capture/trace.h"

namespace stagecraft {

/// Which argument's elements decide what shape the result of an operator has, as in nonzero() or in
/// indexing by a mask; nothing for most operators.
std::optional<std::size_t> shape_deciding_argument(const c10::FunctionSchema& schema);

/// That argument of an operator which has one, with other elements, so that another shape comes
/// out. Where elements decide
/// nothing (indices that are no masks) the same.
c10::IValue with_other_elements(const c10::IValue& argument, const c10::FunctionSchema& schema,
                                ElementChange change);

}  // namespace stagecraft
