#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "stagecraft/graph/graph.h"
#include "stagecraft/graph/names.h"
#include "stagecraft/graph/op_types.h"
#include "stagecraft/graph/size_analysis.h"
#include "stagecraft/tree/tensor_meta.h"

namespace stagecraft {

namespace {

/// Thrown and caught here: the first thing that is wrong.
struct Wrong {
  std::string message;
};

template <typename... Args>
void check(bool holds, fmt::format_string<Args...> format, Args&&... args) {
  if (!holds) throw Wrong{fmt::format(format, std::forward<Args>(args)...)};
}

class Verifier {
 public:
  explicit Verifier(const GraphParts& parts)
      : parts_(parts), is_made_(parts.values.size(), false) {}

  void run() {
    check_sizes();
    for (const GraphState& state : parts_.states) check_state(state);
    check(parts_.args.kind() == TreeSpec::Kind::kTuple, "args: expected a tuple, got {}",
          describe_kind(parts_.args));
    check(parts_.kwargs.kind() == TreeSpec::Kind::kDict, "kwargs: expected a dict, got {}",
          describe_kind(parts_.kwargs));
    const std::size_t leaves = parts_.args.num_leaves() + parts_.kwargs.num_leaves();
    check(parts_.inputs.size() == leaves, "expected {} inputs, got {}", leaves,
          parts_.inputs.size());
    for (const Argument& input : parts_.inputs) {
      check(input.list() == nullptr, "an input is a list");
      check(input.size() == nullptr || is_told(*input.size()),
            "an input is neither a tensor, nor a size, nor fixed");
      if (input.value() != nullptr) make(*input.value(), "inputs");
    }
    std::unordered_set<std::string> names;
    for (const GraphNode& node : parts_.nodes) {
      check(is_name(node.name), "'{}' is no name for a node", node.name);
      check(names.insert(node.name).second, "two nodes are named {}", node.name);
      check_node(node);
    }
    check(parts_.outputs.size() == parts_.output.num_leaves(), "expected {} outputs, got {}",
          parts_.output.num_leaves(), parts_.outputs.size());
    for (const Argument& output : parts_.outputs) read(output, "return");
    for (std::size_t i = 0; i < parts_.values.size(); ++i) {
      check(is_made_[i], "%{} is made by nothing", parts_.values[i].name);
    }
    check_known_sizes();
  }

  /// A branch of a cond: no states, a tuple of tensors as its output, no keywords.
  static void check_branch(const GraphNode& node, const Graph& branch) {
    const GraphParts& parts = branch.parts();
    const std::size_t count = length_of(node.arguments[1]) + length_of(node.arguments[2]);
    check(parts.states.empty() && parts.kwargs.num_leaves() == 0,
          "{}: a branch has states or keywords", node.name);
    check(parts.inputs.size() == count, "{}: a branch takes {} operands, got {}", node.name,
          parts.inputs.size(), count);
    const Argument::List* results = node.results.front().list();
    check(results != nullptr && parts.output.kind() == TreeSpec::Kind::kTuple &&
              parts.outputs.size() == results->size(),
          "{}: a branch returns {} values, got another number", node.name, parts.outputs.size());
  }

 private:
  static std::size_t length_of(const Argument& list) {
    if (list.list() != nullptr) return list.list()->size();
    const c10::IValue* fixed = list.fixed_value();
    return fixed != nullptr && fixed->isList() ? fixed->toListRef().size() : 0;
  }

  void check_sizes() {
    check(parts_.sizes.size() <= SizeExpr::kMaxSizes, "expected at most {} sizes, got {}",
          SizeExpr::kMaxSizes, parts_.sizes.size());
    std::unordered_set<std::string> names;
    for (const GraphSize& size : parts_.sizes) {
      check(is_size_name(size.name), "'{}' is no name for a size", size.name);
      check(names.insert(size.name).second, "two sizes are named {}", size.name);
      const bool follows = size.rule || size.measured;
      const bool is_least = size.least >= 0 || parts_.is_exported;
      check(follows || (is_least && size.example >= size.least),
            "size {}: the example is {}, expected at least {}", size.name, size.example,
            size.least);
      check(follows || size.greatest >= size.example,
            "size {}: the example is {}, expected at most {}", size.name, size.example,
            size.greatest);
      check(!size.rule || !size.measured, "size {}: it has a rule and is measured", size.name);
      const SizeSet before = (SizeSet{1} << names.size() >> 1) - 1;
      check(!size.rule || (size.rule->sizes() & ~before) == 0,
            "size {}: it follows from a size that does not come before it", size.name);
    }
    const SizeSet all = (SizeSet{1} << parts_.sizes.size()) - 1;
    for (const GraphGuard& guard : parts_.guards) {
      check((guard.holds.sizes() & ~all) == 0, "a guard has a size that the graph has not");
    }
    names.clear();
    for (const GraphValue& value : parts_.values) {
      check(is_name(value.name), "'{}' is no name for a value", value.name);
      check(names.insert(value.name).second, "two values are named %{}", value.name);
      check(value.shape.size() >= 32 || value.open_dims >> value.shape.size() == 0,
            "%{} has an open dimension beyond its {}", value.name, value.shape.size());
      for (const SizeExpr& size : value.shape) {
        check((size.sizes() & ~all) == 0, "%{} has a size that the graph has not", value.name);
      }
    }
  }

  static bool is_size(const SizeExpr& expr) {
    return expr.terms().size() == 1 && expr.terms().front().factor == 1 &&
           std::popcount(expr.sizes()) == 1;
  }

  /// Whether an input may be it: a size that follows from no other.
  bool is_told(const SizeExpr& expr) const {
    if (!is_size(expr) || expr.sizes() >> parts_.sizes.size() != 0) return false;
    const GraphSize& size = parts_.sizes[static_cast<std::size_t>(std::countr_zero(expr.sizes()))];
    return !size.rule && !size.measured;
  }

  void make(ValueId id, std::string_view where) {
    const auto i = id.position();
    check(id.value() >= 0 && i < parts_.values.size(), "{}: there is no value {}", where,
          id.value());
    check(!is_made_[i], "{}: %{} is made twice", where, parts_.values[i].name);
    is_made_[i] = true;
  }

  void read(const Argument& argument, std::string_view where) const {
    for_each_value(argument, [&](ValueId id) {
      const auto i = id.position();
      check(id.value() >= 0 && i < parts_.values.size(), "{}: there is no value {}", where,
            id.value());
      check(is_made_[i], "{}: %{} is read before it is made", where, parts_.values[i].name);
    });
  }

  void check_state(const GraphState& state) {
    make(state.value, "states");
    const GraphValue& value = parts_.values[state.value.position()];
    check(state.tensor.defined(), "%{} has no tensor", value.name);
    for (const std::string& name : state.other_names) {
      check(is_name(name), "'{}' is no name for a state", name);
      check(other_names_.insert(name).second && name != value.name, "two states are named %{}",
            name);
    }
    const auto given = state.tensor.sizes();
    bool is_same = state.tensor.scalar_type() == value.dtype && given.size() == value.shape.size();
    for (std::size_t i = 0; is_same && i < given.size(); ++i) {
      is_same = value.shape[i].is_number() && value.shape[i].number() == given[i];
    }
    check(is_same, "%{}: its tensor is {}", value.name, describe(state.tensor));
  }

  void check_node(const GraphNode& node) {
    const c10::FunctionSchema* schema = find_schema(node.op);
    check(schema != nullptr, "{}: there is no operator {}", node.name, toString(node.op));
    check(node.arguments.size() == schema->arguments().size(), "{}: {} takes {} arguments, got {}",
          node.name, toString(node.op), schema->arguments().size(), node.arguments.size());
    check(node.results.size() == schema->returns().size(), "{}: {} returns {} values, got {}",
          node.name, toString(node.op), schema->returns().size(), node.results.size());
    for (std::size_t i = 0; i < node.arguments.size(); ++i) {
      const c10::Argument& formal = schema->arguments()[i];
      read(node.arguments[i], node.name);
      check(fits(node.arguments[i], formal.real_type()),
            "{}: {} takes '{}' as {}, got another kind", node.name, toString(node.op),
            formal.name(), formal.real_type()->str());
    }
    const bool is_cond = node.op.name == kCondOperator;
    check(node.branches.size() == (is_cond ? 2 : 0), "{}: expected {} branches, got {}", node.name,
          is_cond ? 2 : 0, node.branches.size());
    for (const Graph& branch : node.branches) check_branch(node, branch);
    for (std::size_t i = 0; i < node.results.size(); ++i) {
      const c10::TypePtr type = schema->returns()[i].real_type();
      check(is_result(node.results[i], type), "{}: {} returns {}, got another kind", node.name,
            toString(node.op), type->str());
      for_each_value(node.results[i], [&](ValueId id) { make(id, node.name); });
    }
  }

  /// One tensor, a list of them, or None for what nobody needs or is no tensor.
  static bool is_result(const Argument& result, const c10::TypePtr& type) {
    if (result.value() != nullptr) return is_of(type, c10::TypeKind::TensorType);
    if (const Argument::List* list = result.list()) {
      const c10::TypePtr element = element_type(type);
      return element != nullptr && is_of(element, c10::TypeKind::TensorType) &&
             std::ranges::all_of(*list, [](const Argument& each) {
               return each.value() != nullptr || is_none(each);
             });
    }
    return is_none(result);
  }

  static bool is_none(const Argument& argument) {
    return argument.fixed_value() != nullptr && argument.fixed_value()->isNone();
  }

  bool fits(const Argument& argument, const c10::TypePtr& type) const {
    if (type->kind() == c10::TypeKind::AnyType) return true;
    if (argument.value() != nullptr) return is_of(type, c10::TypeKind::TensorType);
    // A number is a tensor too, as in Python: it does not count for the dtype of the result.
    if (argument.size() != nullptr) {
      if (is_of(type, c10::TypeKind::BoolType)) return is_truth(parts_, *argument.size());
      return takes_integer(type) || is_of(type, c10::TypeKind::TensorType);
    }
    const c10::TypePtr element = element_type(type);
    if (const Argument::List* list = argument.list()) {
      if (element == nullptr) return false;
      for (const Argument& each : *list) {
        if (!fits(each, element)) return false;
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
               return fits(Argument::fixed(each), element);
             });
    }
    if (fixed.isDevice()) return is_of(type, c10::TypeKind::DeviceObjType);
    if (fixed.isGenerator()) return is_of(type, c10::TypeKind::GeneratorType);
    if (fixed.isInt()) {
      // A list of a fixed length may be given as one number, and enumerations are numbers.
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

  // Every expression that a run needs must follow from the inputs.
  void check_known_sizes() const {
    SizeSet known = known_sizes(parts_);
    auto check_size = [&](const SizeExpr& size, std::string_view where) {
      const SizeSet open = size.sizes() & ~known;
      check(open == 0, "{}: the inputs do not tell the size {}", where,
            open == 0 ? std::string()
                      : parts_.sizes[static_cast<std::size_t>(std::countr_zero(open))].name);
    };
    // What is measured is known from where its value is made.
    std::unordered_map<int32_t, SizeSet> measured;
    for (std::size_t i = 0; i < parts_.sizes.size(); ++i) {
      const auto& how = parts_.sizes[i].measured;
      if (!how) continue;
      const auto v = how->value.position();
      check(how->value.value() >= 0 && v < parts_.values.size() && how->dim >= -1 &&
                how->dim < static_cast<int32_t>(parts_.values[v].shape.size()),
            "size {}: it is measured at a value that is not there", parts_.sizes[i].name);
      measured[how->value.value()] |= SizeSet{1} << i;
    }
    auto refuse = [&](ValueId value) {
      check(!measured.contains(value.value()), "a size is measured at %{}, which no node makes",
            parts_.values[value.position()].name);
    };
    for (const GraphState& state : parts_.states) refuse(state.value);
    for (const Argument& input : parts_.inputs) for_each_value(input, refuse);
    auto learn = [&](ValueId value) {
      const auto found = measured.find(value.value());
      if (found == measured.end()) return;
      known = with_rules(parts_, known | found->second);
    };
    for (const GraphNode& node : parts_.nodes) {
      for (const Argument& argument : node.arguments) {
        for_each_size(argument, [&](const SizeExpr& size) { check_size(size, node.name); });
      }
      for (const Argument& result : node.results) for_each_value(result, learn);
    }
    for (const Argument& output : parts_.outputs) {
      for_each_size(output, [&](const SizeExpr& size) { check_size(size, "return"); });
    }
  }

  const GraphParts& parts_;
  std::vector<bool> is_made_;
  std::unordered_set<std::string> other_names_;
};

}  // namespace

std::optional<std::string> verify(const GraphParts& parts) {
  try {
    Verifier(parts).run();
  } catch (const Wrong& wrong) {
    return wrong.message;
  }
  return std::nullopt;
}

}  // namespace stagecraft
