#include "stagecraft/graph/op_types.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include "stagecraft/graph/own_operators.h"

namespace stagecraft {

const c10::FunctionSchema* find_schema(const c10::OperatorName& op) {
  // Here, because every use of an operator of ours begins with its schema.
  register_own_operators();
  const auto found = c10::Dispatcher::singleton().findSchema(op);
  return found ? &found->schema() : nullptr;
}

bool is_of(const c10::TypePtr& type, c10::TypeKind kind) {
  if (type->kind() == kind) return true;
  return type->kind() == c10::TypeKind::OptionalType &&
         is_of(type->castRaw<c10::OptionalType>()->getElementType(), kind);
}

c10::TypePtr element_type(const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::OptionalType) {
    return element_type(type->castRaw<c10::OptionalType>()->getElementType());
  }
  if (type->kind() != c10::TypeKind::ListType) return nullptr;
  return type->castRaw<c10::ListType>()->getElementType();
}

bool takes_integer(const c10::TypePtr& type) {
  return is_of(type, c10::TypeKind::IntType) || is_of(type, c10::TypeKind::SymIntType) ||
         is_of(type, c10::TypeKind::NumberType);
}

c10::IValue fixed_list(const std::vector<c10::IValue>& elements, const c10::TypePtr& type) {
  const c10::TypePtr element = element_type(type);
  c10::TypePtr kept = element ? element : c10::AnyType::get();
  // In torch's lists, sizes and enumerations are plain ints.
  if (takes_integer(kept) && kept->kind() != c10::TypeKind::NumberType) kept = c10::IntType::get();
  c10::impl::GenericList list(kept);
  for (const c10::IValue& each : elements) list.push_back(each);
  return list;
}

bool takes_tensors(const c10::TypePtr& type) {
  if (is_of(type, c10::TypeKind::TensorType)) return true;
  const c10::TypePtr element = element_type(type);
  return element != nullptr && is_of(element, c10::TypeKind::TensorType);
}

}  // namespace stagecraft
