#pragma once

#include <string>

#include <ATen/core/operator_name.h>

namespace stagecraft::exported {

/// The operator for a target of an archive, `torch.ops.NAMESPACE.NAME.OVERLOAD`. If a library
/// defines an operator in Python only, and we have a replacement, the result is the name of the
/// replacement. GraphError for a target that is not an operator.
c10::OperatorName operator_of(const std::string& target);

/// Throws GraphError. The message names the operator that this process lacks, the library that it
/// comes from, and what to do.
[[noreturn]] void throw_missing_operator(const c10::OperatorName& op);

}  // namespace stagecraft::exported
