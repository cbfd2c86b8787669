#pragma once

#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/ivalue.h>

#include "stagecraft/base/index.h"
#include "stagecraft/graph/size_expr.h"

namespace stagecraft {

/// A tensor of a graph.
using ValueId = Index<struct ValueKind>;

/// An argument or result of an operator of a graph: a tensor of the graph, a number that depends on
/// the sizes, a fixed value (number, string, None, dtype, device, generator), or a list of these.
class Argument {
 public:
  using List = std::vector<Argument>;

  /// None.
  Argument() = default;
  Argument(ValueId value) : content_(value) {}
  Argument(SizeExpr size) : content_(std::move(size)) {}
  Argument(List list) : content_(std::move(list)) {}
  /// A fixed value without tensors.
  static Argument fixed(c10::IValue value) {
    Argument result;
    result.content_ = std::move(value);
    return result;
  }

  /// Null if the argument is something else.
  const ValueId* value() const { return std::get_if<ValueId>(&content_); }
  const SizeExpr* size() const { return std::get_if<SizeExpr>(&content_); }
  const List* list() const { return std::get_if<List>(&content_); }
  const c10::IValue* fixed_value() const { return std::get_if<c10::IValue>(&content_); }
  bool is_none() const { return fixed_value() != nullptr && fixed_value()->isNone(); }

 private:
  std::variant<c10::IValue, ValueId, SizeExpr, List> content_;
};

/// Calls `fn` for every tensor in the argument, from left to right.
void for_each_value(const Argument& argument, const std::function<void(ValueId)>& fn);
/// Calls `fn` for every expression in the argument, from left to right.
void for_each_size(const Argument& argument, const std::function<void(const SizeExpr&)>& fn);
/// The argument with fn(value) instead of each tensor.
Argument map_values(const Argument& argument, const std::function<Argument(ValueId)>& fn);

}  // namespace stagecraft
