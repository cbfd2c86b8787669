#include "stagecraft/exported/node_arguments.h"

#include <cstddef>
#include <utility>

#include <fmt/format.h>

#include "stagecraft/base/check.h"
#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft::exported {

namespace {

Argument fit(const Argument& given, const c10::TypePtr& type, int32_t length);

Argument fit_fixed(const c10::IValue& value, const c10::TypePtr& type) {
  if (value.isInt() && is_of(type, c10::TypeKind::FloatType)) {
    return Argument::fixed(static_cast<double>(value.toInt()));
  }
  if (value.isBool() && is_of(type, c10::TypeKind::IntType)) {
    return Argument::fixed(value.toBool() ? int64_t{1} : int64_t{0});
  }
  if (value.isString() && is_of(type, c10::TypeKind::DeviceObjType)) {
    return Argument::fixed(c10::Device(value.toStringRef()));
  }
  return Argument::fixed(value);
}

Argument fit_list(const Argument::List& list, const c10::TypePtr& type) {
  const c10::TypePtr element = element_type(type);
  Argument::List fitted;
  std::vector<c10::IValue> fixed;
  for (const Argument& each : list) {
    fitted.push_back(fit(each, element, 0));
    if (fitted.back().fixed_value() != nullptr) fixed.push_back(*fitted.back().fixed_value());
  }
  if (fixed.size() < fitted.size() || takes_tensors(type)) return fitted;
  return Argument::fixed(fixed_list(fixed, type));
}

Argument fit(const Argument& given, const c10::TypePtr& type, int32_t length) {
  if (given.is_none()) return given;
  const bool is_list = element_type(type) != nullptr;
  if (const Argument::List* list = given.list()) {
    return is_list ? fit_list(*list, type) : given;
  }
  // One number is the value of all elements of the list.
  const c10::IValue* fixed = given.fixed_value();
  const bool is_number = given.size() != nullptr || (fixed != nullptr && fixed->isScalar());
  if (is_list && is_number) {
    return fit_list(Argument::List(static_cast<std::size_t>(length > 0 ? length : 1), given), type);
  }
  return fixed != nullptr ? fit_fixed(*fixed, type) : given;
}

}  // namespace

Argument fit_argument(const Argument& given, const c10::Argument& formal) {
  return fit(given, formal.real_type(), formal.N().value_or(0));
}

Argument default_of(const c10::Argument& formal) {
  const auto& value = formal.default_value();
  if (value) return Argument::fixed(*value);
  require<GraphError>(formal.real_type()->kind() == c10::TypeKind::OptionalType,
                      "expected an argument '{}', got none", formal.name());
  return {};
}

}  // namespace stagecraft::exported
