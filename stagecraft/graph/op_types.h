#pragma once

#include <exception>
#include <string>
#include <vector>

#include <ATen/core/function_schema.h>
#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <ATen/core/operator_name.h>

namespace stagecraft {

/// The schema of a registered operator; null when there is none.
const c10::FunctionSchema* find_schema(const c10::OperatorName& op);

/// Whether it is of that kind, or an optional of it.
bool is_of(const c10::TypePtr& type, c10::TypeKind kind);

/// What a list, or an optional one, consists of; null for anything else.
c10::TypePtr element_type(const c10::TypePtr& type);

/// Whether it holds numbers that count something: an int or a number of any kind. Not a dtype,
/// which the engine passes as an int too.
bool takes_integer(const c10::TypePtr& type);

/// A list of fixed values as an operator takes it that wants `type`, a list.
c10::IValue fixed_list(const std::vector<c10::IValue>& elements, const c10::TypePtr& type);

/// What an exception says, without the engine's backtrace.
std::string message_of(const std::exception& error);

/// A tensor, an optional one, or a list of either.
bool takes_tensors(const c10::TypePtr& type);

}  // namespace stagecraft
