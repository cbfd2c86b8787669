#pragma once

#include <string>

#include <ATen/core/operator_name.h>

namespace stagecraft::exported {

/// The operator for a target of an archive, `torch.ops.NAMESPACE.NAME.OVERLOAD`. Operators that
/// libraries define in Python only and for which we have one of our own get its name. GraphError
/// for a target that is not an operator.
c10::OperatorName operator_of(const std::string& target);

/// Throws GraphError: which operator this process lacks, which library it comes from and what to
/// do.
[[noreturn]] void throw_missing_operator(const c10::OperatorName& op);

}  // namespace stagecraft::exported
