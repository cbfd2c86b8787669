#pragma once

#include <exception>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/operator_name.h>

namespace stagecraft {

/// The schema of a registered operator; null if there is none.
const c10::FunctionSchema* find_schema(const c10::OperatorName& op);

/// Whether the type is of that kind, or an optional of that kind.
bool is_of(const c10::TypePtr& type, c10::TypeKind kind);

/// The element type of a list or an optional list; null for other types.
c10::TypePtr element_type(const c10::TypePtr& type);

/// Whether the type takes an integer: an int or a number of any kind. Not a dtype, which torch also
/// passes as an int.
bool takes_integer(const c10::TypePtr& type);

/// A list of fixed values in the form that an operator takes for `type`, a list.
c10::IValue fixed_list(const std::vector<c10::IValue>& elements, const c10::TypePtr& type);

/// Whether the type is a tensor, an optional tensor, or a list of them.
bool takes_tensors(const c10::TypePtr& type);

}  // namespace stagecraft
