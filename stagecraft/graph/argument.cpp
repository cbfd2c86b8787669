#include "stagecraft/graph/argument.h"

namespace stagecraft {

void for_each_value(const Argument& argument, const std::function<void(ValueId)>& fn) {
  if (const ValueId* value = argument.value()) return fn(*value);
  if (const Argument::List* list = argument.list()) {
    for (const Argument& element : *list) for_each_value(element, fn);
  }
}

void for_each_size(const Argument& argument, const std::function<void(const SizeExpr&)>& fn) {
  if (const SizeExpr* size = argument.size()) return fn(*size);
  if (const Argument::List* list = argument.list()) {
    for (const Argument& element : *list) for_each_size(element, fn);
  }
}

Argument map_values(const Argument& argument, const std::function<Argument(ValueId)>& fn) {
  if (const ValueId* value = argument.value()) return fn(*value);
  const Argument::List* list = argument.list();
  if (list == nullptr) return argument;
  Argument::List result;
  for (const Argument& element : *list) result.push_back(map_values(element, fn));
  return result;
}

}  // namespace stagecraft
