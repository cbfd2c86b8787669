#include <algorithm>
#include <array>
#include <string_view>
#include <utility>

#include "stagecraft/base/check.h"
#include "stagecraft/exported/node_arguments.h"
#include "stagecraft/exported/node_builder.h"
#include "stagecraft/graph/op_types.h"

namespace stagecraft::exported {

namespace {

// In a graph, a float of Python that is not fixed is a tensor of double precision without
// dimensions. It must not count for the dtype of a result.

/// The operator of torch for a function of Python on numbers, such as "_operator.truediv".
struct FloatOperator {
  std::string_view target;
  const char* name;  ///< empty: the result is the argument
  const char* overload;
};

/// Null if there is no operator for the function.
const FloatOperator* find_float_operator(std::string_view target) {
  static constexpr std::array<FloatOperator, 15> kOperators = {{
      {"_operator.add", "aten::add", "Tensor"},
      {"_operator.sub", "aten::sub", "Tensor"},
      {"_operator.mul", "aten::mul", "Tensor"},
      {"_operator.truediv", "aten::div", "Tensor"},
      {"_operator.floordiv", "aten::floor_divide", ""},
      {"_operator.mod", "aten::remainder", "Tensor"},
      {"_operator.pow", "aten::pow", "Tensor_Tensor"},
      {"_operator.neg", "aten::neg", ""},
      {"_operator.pos", "", ""},
      {"torch.sym_float", "", ""},
      {"torch._sym_sqrt", "aten::sqrt", ""},
      {"torch.sym_sqrt", "aten::sqrt", ""},
      {"torch.sym_max", "aten::maximum", ""},
      {"torch.sym_min", "aten::minimum", ""},
      {"math.sqrt", "aten::sqrt", ""},
  }};
  const auto* found = std::ranges::find(kOperators, target, &FloatOperator::target);
  return found == kOperators.end() ? nullptr : found;
}

}  // namespace

bool NodeBuilder::is_float(const RawArgument& argument) {
  return argument.name() != nullptr && argument.name()->kind == RawName::Kind::kSymFloat;
}

ValueId NodeBuilder::add_float(const RawNode& node, c10::OperatorName op,
                               const std::vector<Argument>& given, const Mode& mode) {
  GraphNode made = start_node(node, std::move(op), mode);
  made.is_no_grad = true;
  made.autocast.reset();
  const c10::FunctionSchema* schema = find_schema(made.op);
  for (std::size_t i = 0; i < schema->arguments().size(); ++i) {
    const c10::Argument& formal = schema->arguments()[i];
    if (i < given.size()) {
      made.arguments.push_back(fit_argument(given[i], formal));
    } else if (formal.name() == "dtype") {
      made.arguments.push_back(Argument::fixed(static_cast<int64_t>(c10::kDouble)));
    } else {
      made.arguments.push_back(default_of(formal));
    }
  }
  const ValueId id = add_node(std::move(made), {.name = "", .dtype = c10::kDouble});
  floats_.insert(id.value());
  return id;
}

bool NodeBuilder::import_float(const RawNode& node, Scope& scope, const Mode& mode) {
  if (node.outputs.size() != 1 || node.outputs[0].name() == nullptr) return false;
  const RawName& made = *node.outputs[0].name();
  const bool is_trunc = made.kind == RawName::Kind::kSymInt &&
                        (node.target == "math.trunc" || node.target == "torch.sym_int");
  if (made.kind != RawName::Kind::kSymFloat && !is_trunc) return false;
  std::vector<Argument> given;
  for (const auto& [name, raw] : node.inputs) {
    const Argument number = resolve(raw, scope);
    const bool is_tensor = number.value() != nullptr;
    given.push_back(is_tensor ? number
                              : add_float(node, {"aten::scalar_tensor", ""}, {number}, mode));
  }
  if (is_trunc) {
    const RawSymbol* symbol = find_symbol(made.name);
    require<GraphError>(symbol != nullptr && given.size() == 1, "expected one number");
    // The result has no symbol. It is known by its whole expression.
    if (symbol->number || sizes_.has(symbol->expression)) return true;
    add_measured(symbol->expression, {*given[0].value(), -1}, symbol->hint);
    return true;
  }
  const FloatOperator* op = find_float_operator(node.target);
  require<GraphError>(op != nullptr && !given.empty(),
                      "no operator computes this function of floats");
  scope[made.name] = op->name[0] == '\0'
                         ? given[0]
                         : Argument(add_float(node, {op->name, op->overload}, given, mode));
  return true;
}

void NodeBuilder::give_floats_the_dtype(const RawNode& node, GraphNode& made, const Mode& mode) {
  bool has_floats = false;
  bool has_dimensions = false;
  for (const auto& [name, raw] : node.inputs) has_floats = has_floats || is_float(raw);
  if (!has_floats || node.outputs.size() != 1 || node.outputs[0].name() == nullptr) return;
  for (const Argument& argument : made.arguments) {
    for_each_value(argument, [&](ValueId value) {
      const GraphValue& info = parts_.values[value];
      const bool decides = c10::isFloatingType(info.dtype) || c10::isComplexType(info.dtype);
      has_dimensions = has_dimensions || (decides && !info.shape.empty());
    });
  }
  const auto meta = graphs_.back()->tensors.find(node.outputs[0].name()->name);
  if (has_dimensions || meta == graphs_.back()->tensors.end()) return;
  const auto dtype = static_cast<int64_t>(meta->second.dtype);
  for (Argument& argument : made.arguments) {
    const ValueId* value = argument.value();
    if (value == nullptr || !floats_.contains(value->value())) continue;
    const ValueId cast =
        add_float(node, {"aten::to", "dtype"}, {*value, Argument::fixed(dtype)}, mode);
    parts_.values[cast].dtype = meta->second.dtype;
    argument = cast;
  }
}

}  // namespace stagecraft::exported
