#pragma once

#include <string>
#include <vector>

#include <ATen/core/function_schema.h>

#include "stagecraft/graph/argument.h"

namespace stagecraft::exported {

/// Converts an argument to the type in the operator's schema: an int to a float, one number to a
/// list of a fixed length, lists to one element type. An argument that does not fit is returned
/// unchanged; verify() reports it.
Argument fit_argument(const Argument& given, const c10::Argument& formal);

/// The default of a parameter. GraphError if it has none.
Argument default_of(const c10::Argument& formal);

}  // namespace stagecraft::exported
