#pragma once

#include <string_view>

namespace stagecraft::exported {

/// What computes a float of Python's in a graph: a number that is no size lives there as a tensor
/// without dimensions, in double precision, which counts for no result's dtype.
///
/// The operator, by name and overload, for a function of Python's numbers ("_operator.truediv");
/// empty names for one that changes nothing, null where there is none.
struct FloatOperator {
  std::string_view target;
  const char* name;
  const char* overload;
};
const FloatOperator* find_float_operator(std::string_view target);

}  // namespace stagecraft::exported
