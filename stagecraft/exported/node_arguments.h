#pragma once

#include <string>
#include <vector>

#include <ATen/core/function_schema.h>

#include "stagecraft/graph/argument.h"

namespace stagecraft::exported {

/// An argument as an operator's schema wants it: an int for a float, one number for a list of a
/// fixed length, lists of one type. What does not fit stays, and verify() names it.
Argument fit_argument(const Argument& given, const c10::Argument& formal);

/// The default of a parameter. GraphError when it has none.
Argument default_of(const c10::Argument& formal);

}  // namespace stagecraft::exported
