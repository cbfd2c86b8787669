#pragma once

#include <string>
#include <utility>

#include <fmt/format.h>

#include <ATen/core/jit_type.h>

#include "stagecraft/graph/graph.h"

namespace stagecraft::detail {

/// The first defect of a graph. verify() throws and catches it.
struct GraphDefect {
  std::string message;
};

template <typename... Args>
void check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw GraphDefect{fmt::format(format, std::forward<Args>(args)...)};
}

// Parts of verify(). Each throws GraphDefect, or returns whether the rule holds.

/// Sizes, guards and the shapes of values refer to sizes that exist. Names are valid and unique.
void check_sizes(const GraphParts& parts);
/// Every size that a run needs follows from the inputs, or is measured before it is used.
/// REQUIRES that every value is made once, before it is read.
void check_known_sizes(const GraphParts& parts);
/// Whether an operator takes the argument where its schema has `type`.
bool fits(const GraphParts& parts, const Argument& argument, const c10::TypePtr& type);
/// Whether `type` of a schema can be this result: a tensor, a list of tensors, or None for a result
/// that is not used or is not a tensor.
bool is_result(const Argument& result, const c10::TypePtr& type);

}  // namespace stagecraft::detail
