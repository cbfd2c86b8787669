#include <algorithm>

#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/graph/verify_parts.h"

namespace stagecraft::detail {

bool is_result(const Argument& result, const c10::TypePtr& type) {
  if (result.value() != nullptr) return is_of(type, c10::TypeKind::TensorType);
  if (const Argument::List* list = result.list()) {
    const c10::TypePtr element = element_type(type);
    return element != nullptr && is_of(element, c10::TypeKind::TensorType) &&
           std::ranges::all_of(*list, [](const Argument& each) {
             return each.value() != nullptr || each.is_none();
           });
  }
  return result.is_none();
}

bool fits(const GraphParts& parts, const Argument& argument, const c10::TypePtr& type) {
  if (type->kind() == c10::TypeKind::AnyType) return true;
  if (argument.value() != nullptr) return is_of(type, c10::TypeKind::TensorType);
  // A number can be passed for a tensor, as in Python. It does not count for the dtype of the
  // result.
  if (argument.size() != nullptr) {
    if (is_of(type, c10::TypeKind::BoolType)) return is_truth(parts, *argument.size());
    return takes_integer(type) || is_of(type, c10::TypeKind::TensorType);
  }
  const c10::TypePtr element = element_type(type);
  if (const Argument::List* list = argument.list()) {
    if (element == nullptr) return false;
    for (const Argument& each : *list) {
      if (!fits(parts, each, element)) return false;
    }
    return true;
  }
  const c10::IValue& fixed = *argument.fixed_value();
  if (fixed.isNone()) {
    return type->kind() == c10::TypeKind::OptionalType || type->kind() == c10::TypeKind::NoneType;
  }
  if (fixed.isTensor()) return is_of(type, c10::TypeKind::TensorType);
  if (fixed.isScalar() && is_of(type, c10::TypeKind::TensorType)) return true;
  if (fixed.isList()) {
    return element != nullptr &&
           std::ranges::all_of(fixed.toListRef(), [&](const c10::IValue& each) {
             return fits(parts, Argument::fixed(each), element);
           });
  }
  if (fixed.isDevice()) return is_of(type, c10::TypeKind::DeviceObjType);
  if (fixed.isGenerator()) return is_of(type, c10::TypeKind::GeneratorType);
  if (fixed.isInt()) {
    // torch accepts one number for a list of a fixed length. Enumerations are numbers.
    return !is_of(type, c10::TypeKind::TensorType) && !is_of(type, c10::TypeKind::StringType) &&
           !is_of(type, c10::TypeKind::BoolType);
  }
  if (fixed.isDouble()) {
    return is_of(type, c10::TypeKind::FloatType) || is_of(type, c10::TypeKind::NumberType) ||
           is_of(type, c10::TypeKind::SymFloatType);
  }
  if (fixed.isBool()) {
    return is_of(type, c10::TypeKind::BoolType) || is_of(type, c10::TypeKind::NumberType) ||
           is_of(type, c10::TypeKind::SymBoolType);
  }
  if (fixed.isComplexDouble()) {
    return is_of(type, c10::TypeKind::ComplexType) || is_of(type, c10::TypeKind::NumberType);
  }
  if (fixed.isString()) {
    return is_of(type, c10::TypeKind::StringType) || is_of(type, c10::TypeKind::DeviceObjType);
  }
  return true;
}

}  // namespace stagecraft::detail
